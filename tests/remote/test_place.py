"""URLs of engines and sidecars, as users write them."""

from __future__ import annotations

import pytest

from sidecar.remote import MalformedPlace, Place


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("https://Engine.NS.svc/", "https://engine.ns.svc:443"),
        ("http://[fd00::1]:8000/pod-a/", "http://[fd00::1]:8000/pod-a"),
        ("engine", "http://engine:80"),
    ],
)
def test_a_place_is_read_in_its_normal_form(text: str, url: str) -> None:
    assert Place.parse(text).url == url


def test_ranks_are_counted_up_from_its_port() -> None:
    assert Place.parse("http://h:8000/x").of_rank(3).url == "http://h:8003/x"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ftp://h", "neither an http nor an https URL"),
        ("http://user@h:1", "more than a host, a port and a path"),
        ("http://h:1/?key=secret", "^'http://h:1/' has more than a host, a port and a path"),
        ("http://h:99999", "no valid host and port"),
        ("http://:80", "no valid host and port"),
        ("", "no valid host and port"),
        ("http://h:0", "no valid host and port"),
        ("http://[::1", "'http://\\[::1' has no valid host and port"),
        ("http://[", "no valid host and port"),
        ("http://[x]:1", "no valid host and port"),
        ("http://h:1/a b", "characters that no URL has"),
        ("http://h:1/\x1b[2J", r"'http://h:1/\\x1b\[2J' has characters that no URL has"),
        ("http://h:1/\ud800", "characters that no URL has"),
        ("http://h:1/é", "a path that is none"),
        ("http://h:1/%zz", "a path that is none"),
        (f"http://h:1/{'x' * 9999}", "^'http://h:1/x{86}...' has a path that is none"),
    ],
)
def test_what_is_no_place_is_refused_by_name(text: str, reason: str) -> None:
    with pytest.raises(MalformedPlace, match=reason):
        Place.parse(text)


def test_a_password_is_never_repeated() -> None:
    with pytest.raises(MalformedPlace) as refused:
        Place.parse("http://user:secret@h:1")
    assert str(refused.value) == "a URL with '@' has more than a host, a port and a path"
