"""Endpoints in the spellings of contract section 1, and the texts that are none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.endpoint import Endpoint, MalformedEndpoint, is_host_name


@pytest.mark.parametrize(
    ("text", "host", "port", "netloc"),
    [
        ("10.0.0.7:8000", "10.0.0.7", 8000, "10.0.0.7:8000"),
        ("localhost:1", "localhost", 1, "localhost:1"),
        ("p-0.pool.svc.local:65535", "p-0.pool.svc.local", 65535, "p-0.pool.svc.local:65535"),
        ("pod_a:8000", "pod_a", 8000, "pod_a:8000"),
        ("http://10.0.0.7:8000", "10.0.0.7", 8000, "10.0.0.7:8000"),
        ("HTTP://10.0.0.7:8000", "10.0.0.7", 8000, "10.0.0.7:8000"),
        ("  10.0.0.7:8000  ", "10.0.0.7", 8000, "10.0.0.7:8000"),
        ("[fd00::7]:8000", "fd00::7", 8000, "[fd00::7]:8000"),
        ("http://[fd00::7]:8000", "fd00::7", 8000, "[fd00::7]:8000"),
        ("[::1]:80", "::1", 80, "[::1]:80"),
    ],
)
def test_an_endpoint_is_read_in_every_tolerated_spelling(
    text: str, host: str, port: int, netloc: str
) -> None:
    endpoint = Endpoint.parse(text)
    assert (endpoint.host, endpoint.port, endpoint.netloc) == (host, port, netloc)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://10.0.0.7:8000", "10.0.0.7:8000"),
        ("Pod-A.Example:8000", "pod-a.example:8000"),
        ("[FD00::7]:8000", "[fd00::7]:8000"),
        ("[fd00:0:0:0:0:0:0:7]:8000", "[fd00::7]:8000"),
        ("[0::1]:80", "http://[::1]:80"),
    ],
)
def test_endpoints_that_differ_only_in_spelling_are_equal(one: str, other: str) -> None:
    assert Endpoint.parse(one) == Endpoint.parse(other)
    assert hash(Endpoint.parse(one)) == hash(Endpoint.parse(other))


@pytest.mark.parametrize(
    ("one", "other"), [("10.0.0.7:8000", "10.0.0.7:8001"), ("10.0.0.7:8000", "10.0.0.8:8000")]
)
def test_endpoints_with_another_host_or_port_differ(one: str, other: str) -> None:
    assert Endpoint.parse(one) != Endpoint.parse(other)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "127.9.8.7",
        "999.9.8.7:8000",
        "127.9.8.07:8000",
        "127.9.8.256.:8000",
        ":8000",
        "127.9.8.7:",
        "127.9.8.7:notaport",
        "127.9.8.7:notaport:1",
        "127.9.8.7:8000:1",
        "127.9.8.7:0",
        "127.9.8.7:65536",
        "127.9.8.7:999999999999",
        "127.9.8.7:-1",
        "127.9.8.7:+80",
        "127.9.8.7:8_0",
        "127.9.8.7: 80",
        "127.9.8.7:\u0668\u0660",
        "127.9.8.7:8000/path",
        "127.9.8.7:8000?q",
        "http://",
        "http://:8000",
        "http://127.9.8.7",
        "https://127.9.8.7:8000",
        "http://http://127.9.8.7:8000",
        "user@127.9.8.7:8000",
        "a b:8000",
        "a/b:8000",
        "a,b:8000",
        "a\r\nx:8000",
        "p\xf6d:8000",
        "..:8000",
        "fd00::7:8000",
        "[fd00::7]",
        "[fd00::7]:",
        "[fd00::7:8000",
        "fd00::7]:8000",
        "[]:8000",
        "[10.0.0.7]:8000",
        "[fd00::7]x:8000",
        "[[fd00::7]]:8000",
        "a" * 300 + ":8000",
    ],
)
def test_a_text_that_is_not_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(MalformedEndpoint):
        Endpoint.parse(text)


@pytest.mark.parametrize("text", ["[fe80::1%a b]:8000", "[fe80::1%/x]:8000", "[fe80::1%@evil]:8000"])
def test_what_follows_a_percent_sign_in_an_ipv6_literal_never_reaches_a_url_or_a_host_header(
    text: str,
) -> None:
    with pytest.raises(MalformedEndpoint):
        Endpoint.parse(text)


def test_a_refusal_never_repeats_the_text() -> None:
    with pytest.raises(MalformedEndpoint) as refusal:
        Endpoint.parse("s3cret value")
    assert "s3cret" not in str(refusal.value)


def test_another_port_keeps_the_host() -> None:
    assert Endpoint.parse("[fd00::7]:8000").with_port(7777).netloc == "[fd00::7]:7777"


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=30) | st.text(alphabet="a1.:[]%/-_ @f", max_size=24))
def test_any_text_is_read_or_refused_and_what_is_read_reads_the_same_again(text: str) -> None:
    try:
        endpoint = Endpoint.parse(text)
    except MalformedEndpoint:
        return
    assert Endpoint.parse(endpoint.netloc) == endpoint
    assert 0 < endpoint.port < 65536
    assert endpoint.netloc.isascii()
    assert endpoint.netloc.isprintable()
    assert " " not in endpoint.netloc


def test_an_ipv4_mapped_address_is_the_ipv4_host_itself() -> None:
    assert Endpoint.parse("[::ffff:10.0.0.3]:8000") == Endpoint.parse("10.0.0.3:8000")


@pytest.mark.parametrize(
    ("text", "is_name"),
    [
        ("pod-0.ns.svc", True),
        ("pod_0.ns.svc.", True),
        ("a" * 63, True),
        ("a" * 64, False),
        ("a..b", False),
        (".a", False),
        ("", False),
        ("10.0.0.1", False),
        ("10.0.0.256", False),
        ("::1", False),
        ("http://a", False),
        ("a\n", False),
    ],
)
def test_a_host_name_is_no_address_and_no_endpoint(text: str, is_name: bool) -> None:
    assert is_host_name(text) is is_name
