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
        ("http://h:1/?x=1", "more than a host, a port and a path"),
        ("http://h:99999", "no valid host and port"),
        ("http://:80", "no valid host and port"),
        ("", "no valid host and port"),
    ],
)
def test_what_is_no_place_is_refused_by_name(text: str, reason: str) -> None:
    with pytest.raises(MalformedPlace, match=reason):
        Place.parse(text)
