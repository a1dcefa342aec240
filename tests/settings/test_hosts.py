"""Hosts are read where a name service or a certificate could know them, and refused where none can."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.settings.hosts import host, ip, stage_name


def reason_of(read: Callable[[str], str], text: str) -> str:
    """Why it is refused."""
    with pytest.raises(ValueError, match=r".") as refused:
        read(text)
    return str(refused.value)


LONGEST = ".".join(["a" * 61] * 4) + ".abcde"  # 253 characters


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", ""),
        ("localhost", "localhost"),
        ("Pod-0.vllm_decode.ns.svc.cluster.local.", "Pod-0.vllm_decode.ns.svc.cluster.local."),
        ("a" * 63, "a" * 63),
        (LONGEST, LONGEST),
        ("b\u00fccher.example", "b\u00fccher.example"),
        ("10.0.0.1", "10.0.0.1"),
        ("::", "::"),
        ("[fd00::1]", "fd00::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
    ],
)
def test_names_and_addresses_are_hosts(text: str, value: str) -> None:
    assert host(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *(
            ".x",
            "a..b",
            ".",
            "..",
            "a" * 64,
            f"x.{'a' * 64}",
            LONGEST + "f",
            "\u00e9" * 64,
            "a..\u00e9",
            "\u00ad",
        ),
        *(
            "10.0.0.256",
            "fe80::1%\u00e9",
            "fe80::1%\x1b",
            "fe80::1%a b",
            "a:b",
            "a:80",
            "-a",
            "a-",
            "*.x",
            "a@b",
        ),
        *("a b", "a/b", "a,b", "a\0b", "a\x1bb", "\ud800", "a\n"),
    ],
)
def test_what_no_name_service_can_be_asked_for_is_no_host(text: str) -> None:
    assert reason_of(host, text) == f"{text!r} is not a host name or an IP address"


@given(st.text(st.characters(codec=None) | st.sampled_from("a1.:[]%-_"), max_size=80))
def test_whatever_is_taken_the_system_can_be_given(text: str) -> None:
    with suppress(ValueError):
        name = host(text)
        assert "\0" not in name
        assert len(name.encode("ascii" if ":" in name else "idna")) <= 254


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("decoder=vllm.ns", "decoder=vllm.ns"),
        ("decoder=b\u00fccher.example", "decoder=b\u00fccher.example"),
        ("decoder=[fd00::1]", "decoder=fd00::1"),
        ("decoder=10.0.0.1", "decoder=10.0.0.1"),
    ],
)
def test_a_stage_has_a_name_that_certificates_have(text: str, value: str) -> None:
    assert stage_name(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("decoder", "'decoder' is not of the form stage=name"),
        ("decoder=", "'decoder=' is not of the form stage=name"),
        ("decoder=a b", "'decoder=a b' is not of the form stage=name"),
        ("decoder=.x", "'.x' is not a host name or an IP address"),
        ("decoder=a..b", "'a..b' is not a host name or an IP address"),
        (f"decoder={'a' * 64}", f"'{'a' * 64}' is not a host name or an IP address"),
        (f"decoder={LONGEST}f", f"'{LONGEST}f' is not a host name or an IP address"),
        ("decoder=*.x", "'*.x' is not a host name or an IP address"),
        ("decoder=[]", "'[]' cannot be in a certificate"),
        ("decoder=a.", "'a.' cannot be in a certificate"),
        ("decoder=a\u3002", "'a\u3002' cannot be in a certificate"),
        ("decoder=fe80::1%eth0", "'fe80::1%eth0' cannot be in a certificate"),
    ],
)
def test_what_no_certificate_can_be_for_is_refused(text: str, reason: str) -> None:
    assert reason_of(stage_name, text) == reason


@pytest.mark.parametrize(
    ("text", "value"),
    [("[FD00:0::7]", "fd00::7"), ("10.0.0.1", "10.0.0.1"), ("fe80::1%eth0", "fe80::1%eth0")],
)
def test_an_address_is_read_in_its_usual_spelling(text: str, value: str) -> None:
    assert ip(text) == value


@pytest.mark.parametrize("text", ["pod-a", "", "10.0.0", "fe80::1%\u00e9", "10.0.0.1\0"])
def test_what_is_no_address_is_refused(text: str) -> None:
    assert reason_of(ip, text) == f"{text!r} is not an IP address"
