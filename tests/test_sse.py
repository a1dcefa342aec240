"""Events in a piece of a stream, whatever its line ends (HTML standard section 9.2.6)."""

from __future__ import annotations

import pytest

from sidecar.sse import complete_events


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (b"", []),
        (b"data: 1", []),
        (b"data: 1\n", []),
        (b"data: 1\n\n", [b"1"]),
        (b"data:1\r\n\r\ndata: 2\r\n\r\ndata: 3\r\n", [b"1", b"2"]),
        (b"data: 1\r\rdata: 2\r\r", [b"1", b"2"]),
        (b": comment\n\ndata: 1\n\n", [b"1"]),
        (b"event: error\nid: 7\ndata: a\ndata:  b\n\n", [b"a\n b"]),
        (b"data\n\ndata: \n\n", [b""]),
        (b"data: {}\n\ndata: [DONE]\n\n", [b"{}", b"[DONE]"]),
    ],
)
def test_the_data_of_every_complete_event(text: bytes, events: list[bytes]) -> None:
    assert complete_events(text) == events
