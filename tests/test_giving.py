"""What a source's own counters say of the pulls from it, and what they leave open."""

from __future__ import annotations

import pytest

from sidecar.engine_counters import Counters
from sidecar.evidence import Range
from sidecar.giving import Says, given, says


def vllm(written: float | None, stored: float | None) -> Counters:
    return Counters(written_bytes=written, stored_bytes=stored)


def test_an_engine_that_counts_what_peers_took_says_exactly_how_much_that_was() -> None:
    assert given(Counters(served_bytes=64.0), Counters(served_bytes=96.0)) == Range(32.0, 32.0)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (vllm(10.0, 10.0), vllm(74.0, 10.0), Range(64.0, 64.0)),
        (vllm(10.0, 10.0), vllm(74.0, 42.0), Range(32.0, 64.0)),
        (vllm(10.0, 10.0), vllm(42.0, 42.0), Range(0.0, 32.0)),
        (vllm(10.0, 10.0), vllm(10.0, 42.0), Range(0.0, 0.0)),  # stored, and not yet written
        (vllm(10.0, None), vllm(74.0, None), Range(0.0, 64.0)),
    ],
    ids=["gave", "gave and stored", "only stored", "about to be written", "no count of stores"],
)
def test_what_vllm_writes_is_the_most_and_what_it_did_not_store_the_least(
    before: Counters, after: Counters, expected: Range
) -> None:
    assert given(before, after) == expected


def test_without_a_look_before_the_whole_count_is_the_most_and_nothing_is_the_least() -> None:
    assert given(None, Counters(served_bytes=96.0)) == Range(0.0, 96.0)
    assert given(None, vllm(64.0, 0.0)) == Range(0.0, 64.0)
    assert given(None, vllm(0.0, 0.0)) == Range(0.0, 0.0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Counters(), Counters()),
        (None, Counters()),
        (Counters(), vllm(64.0, 0.0)),
        (vllm(64.0, 0.0), Counters()),
        (vllm(64.0, 0.0), vllm(10.0, 0.0)),
        (Counters(served_bytes=64.0), Counters(served_bytes=10.0)),
    ],
    ids=["no such series", "never any", "appeared", "gone", "started again", "served, started again"],
)
def test_what_cannot_be_compared_is_not_known(before: Counters | None, after: Counters) -> None:
    assert given(before, after) is None
    assert says(given(before, after), 64, 64, 64) is Says.UNKNOWN


@pytest.mark.parametrize(
    ("gave", "own", "ended", "begun", "expected"),
    [
        (Range(64, 64), 64, 64, 64, Says.CONFIRMED),
        (Range(200, 900), 64, 64, 128, Says.CONFIRMED),  # others take from it too
        (Range(100, 900), 64, 64, 128, Says.UNKNOWN),
        (Range(0, 63), 64, 64, 64, Says.CONTRADICTED),
        (Range(0, 0), 64, 64, 64, Says.CONTRADICTED),
        (Range(0, 100), 64, 128, 128, Says.CONTRADICTED),  # it could have given one of two
        (Range(0, 100), 64, 64, 128, Says.UNKNOWN),  # the other may have ended later
        (Range(0, 0), 0, 0, 0, Says.NOTHING),
        (Range(0, 0), None, 0, 0, Says.NOTHING),
        (Range(0, 900), 0, 0, 0, Says.UNKNOWN),  # its own blocks, perhaps
        (Range(64, 64), 0, 64, 64, Says.UNKNOWN),  # that was another pull of ours
        (Range(96, 96), 0, 64, 64, Says.GAVE),
        (Range(64, 64), None, 0, 0, Says.UNKNOWN),
    ],
)
def test_what_is_said_of_a_pull(gave: Range, own: int | None, ended: int, begun: int, expected: Says) -> None:
    assert says(gave, own, ended, begun) is expected
