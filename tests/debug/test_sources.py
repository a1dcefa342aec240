"""What is known of sources: looked at without contacting one or using a trial up."""

from __future__ import annotations

import socket

from sidecar.debug.reasons import SourceState
from sidecar.debug.sources import state_of, table
from sidecar.endpoint import Endpoint
from sidecar.evidence import Outcome
from sidecar.giving import Says
from sidecar.guard import GuardTimes, SourceGuard
from sidecar.yields import YieldRules, Yields
from tests.test_answers import closed_port
from tests.test_yields import A, B, pull

TIMES = GuardTimes(budget_s=1.0, good_s=60.0, bad_s=60.0, table_entries=8)


def silent() -> Yields:
    yields = Yields(YieldRules(1, 60.0))
    moved = pull(Outcome.MOVED, B, moved_bytes=64)
    yields.pull(moved)
    moved.source_says = Says.CONFIRMED
    yields.source(moved)
    yields.pull(pull(Outcome.NOTHING, A))
    return yields


async def test_a_source_is_what_its_last_probe_showed_while_that_holds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        good, bad = Endpoint("127.0.0.1", listening.getsockname()[1]), Endpoint("127.0.0.1", closed_port())
        async with SourceGuard(TIMES) as guard:
            yields = Yields(YieldRules(1, 60.0))
            assert state_of(good, guard, yields) == SourceState("unknown")
            assert (guard.known, guard.probes) == (0, 0)
            await guard.admits(good)
            await guard.admits(bad)
            assert state_of(good, guard, yields) == SourceState("accepts")
            assert state_of(bad, guard, yields) == SourceState("refuses")
            assert [(row["source"], row["guard"], row["guard_holds"]) for row in table(guard, yields)] == [
                (bad.netloc, "refuses", True),
                (good.netloc, "accepts", True),
            ]


async def test_what_a_probe_showed_is_unknown_to_a_request_once_its_time_is_over() -> None:
    bad = Endpoint("127.0.0.1", closed_port())
    brief = GuardTimes(budget_s=1.0, good_s=1e-9, bad_s=1e-9, table_entries=8)
    async with SourceGuard(brief) as guard:
        await guard.admits(bad)
        assert state_of(bad, guard, Yields(YieldRules(1, 60.0))) == SourceState("unknown")
        [row] = table(guard, Yields(YieldRules(1, 60.0)))
        assert (row["guard"], row["guard_holds"]) == ("refuses", False)


def test_looking_at_a_silent_source_uses_no_trial_up() -> None:
    yields = silent()
    assert [state_of(source, None, yields) for source in (A, B)] == [
        SourceState("off", resting=True),
        SourceState("off"),
    ]
    yields.sources[A].trial_s = 0.0  # its time has come
    assert not state_of(A, None, yields).resting
    assert not state_of(A, None, yields).resting
    assert not yields.suspended(A)


def test_the_table_tells_what_each_source_has_given_the_last_told_of_first() -> None:
    assert table(None, silent()) == [
        {
            "source": "10.0.0.2:7777",
            "guard": "off",
            "guard_holds": False,
            "pulls": 1,
            "moved_bytes": 0,
            "moved_tokens": 0,
            "source_says": {},
            "nothing_in_a_row": 1,
            "silent": True,
            "resting": True,
        },
        {
            "source": "10.0.0.3:7777",
            "guard": "off",
            "guard_holds": False,
            "pulls": 1,
            "moved_bytes": 64,
            "moved_tokens": 0,
            "source_says": {"confirmed": 1},
            "nothing_in_a_row": 0,
            "silent": False,
            "resting": False,
        },
    ]
