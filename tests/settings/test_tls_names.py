"""Every name that the TLS flags accept means something to the OpenSSL that serves."""

import ssl

import pytest

from sidecar.settings.tls_names import CIPHER_SUITES, MIN_VERSIONS, TLS13_SUITES


@pytest.mark.parametrize(("go_name", "openssl_name"), CIPHER_SUITES.items())
def test_openssl_offers_exactly_the_suite_that_go_names(go_name: str, openssl_name: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers(openssl_name)
    below_13 = [suite["name"] for suite in context.get_ciphers() if suite["protocol"] != "TLSv1.3"]
    assert below_13 == [openssl_name]
    family = "ECDSA" if "ECDSA" in go_name else "RSA"
    assert openssl_name.startswith(f"ECDHE-{family}-")


def test_the_suites_of_tls_1_3_are_those_that_openssl_calls_the_same() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    names = {suite["name"] for suite in context.get_ciphers() if suite["protocol"] == "TLSv1.3"}
    assert names == TLS13_SUITES


def test_minimum_versions_are_members_of_the_ssl_module() -> None:
    assert {name: ssl.TLSVersion[member] for name, member in MIN_VERSIONS.items()} == {
        "VersionTLS12": ssl.TLSVersion.TLSv1_2,
        "VersionTLS13": ssl.TLSVersion.TLSv1_3,
    }
