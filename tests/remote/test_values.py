"""Values of flags: what is taken, and what is refused in which words."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest

from sidecar.remote import values


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("Authorization: Bearer x:y ", ("authorization", "Bearer x:y")),
        ("x-empty:", ("x-empty", "")),
        ("X-Data-Parallel-Host-Port: h:1", ("x-data-parallel-host-port", "h:1")),
    ],
)
def test_a_header_is_a_name_and_a_value(text: str, pair: tuple[str, str]) -> None:
    assert values.header(text) == pair


NO_HEADER = "not 'NAME: VALUE' with a header's name (what was given is not shown)"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("secret", NO_HEADER),
        (": secret", NO_HEADER),
        ("é: secret", NO_HEADER),
        ("a b: secret", NO_HEADER),
        ("a\r\nb: secret", NO_HEADER),
        ("a: sécret", "the value of a has other characters than printable ASCII"),
        ("a: secret\r\nb: c", "the value of a has other characters than printable ASCII"),
        ("a: secret\n", "the value of a has other characters than printable ASCII"),
        ("a: secret\0", "the value of a has other characters than printable ASCII"),
        ("a: \udcff", "the value of a has other characters than printable ASCII"),
        (f"a: {'secret' * 2000}", "the value of a has over 8,192 characters"),
        *(
            (f"{name}: 3", f"{name.lower()} is the command's own")
            for name in (
                *("Content-Length", "Transfer-Encoding", "Host", "Connection", "Upgrade", "TE", "Expect"),
                *("Accept-Encoding", "X-KV-Cache-Source-Host-Port", "x-prefiller-host-port"),
            )
        ),
    ],
)
def test_a_header_that_no_request_can_have_is_refused_without_its_value(text: str, why: str) -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        values.header(text)
    assert str(refused.value) == why


def test_of_two_headers_of_a_name_none_is_lost() -> None:
    assert values.headers([("a", "1"), ("b", "2")]) == {"a": "1", "b": "2"}
    with pytest.raises(ValueError, match=r"^a is given twice$"):
        values.headers([("a", "1"), ("b", "2"), ("a", "3")])


@pytest.mark.parametrize(
    ("read", "text", "why"),
    [
        (values.whole(1, 1000), "0", "'0' is not a whole number from 1 to 1,000"),
        (values.whole(1, 1000), "1001", "'1001' is not a whole number from 1 to 1,000"),
        (values.whole(1, 1000), "9" * 9999, f"'{'9' * 97}...' is not a whole number from 1 to 1,000"),
        (values.whole(1, 1000), "\u0663", "'\u0663' is not a whole number from 1 to 1,000"),
        (values.duration, "0s", "'0s' is not a duration up to 24h, such as 500ms, 20s or 2m"),
        (values.duration, "25h", "'25h' is not a duration up to 24h, such as 500ms, 20s or 2m"),
        (values.duration, "5", "'5' is not a duration up to 24h, such as 500ms, 20s or 2m"),
        (values.filename, "", "no file is named"),
        (values.name, "", "'' is not a name"),
        (values.name, "\ud800", r"'\ud800' is not a name"),
        (
            values.url,
            "http://[::1",
            "'http://[::1' has no valid host and port; such as http://10.0.0.1:8000",
        ),
        (values.url, "http://xn--a:1", "'http://xn--a:1' has a host that no name service knows"),
        (values.endpoint, "h", "'h' is not HOST:PORT"),
    ],
)
def test_what_is_none_is_refused_with_what_is_wanted(
    read: Callable[[str], object], text: str, why: str
) -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        read(text)
    assert str(refused.value) == why


def test_what_is_one_is_read() -> None:
    assert (values.whole(1, 1000)("1000"), values.duration("1m30s")) == (1000, 90.0)
