"""What a pull shows, which pairs are tried, what peers have to share, and what that makes of a diagnosis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sidecar.doctor.agreement import compared, differing
from sidecar.doctor.diagnosis import Measured, diagnosed
from sidecar.doctor.findings import Severity
from sidecar.doctor.order import Fresh, fitting
from sidecar.doctor.pulls import Pair, Pull, Verdict, chosen, judged
from sidecar.doctor.told import Configuration, Fingerprint, Told
from sidecar.remote.facts import Facts
from tests.doctor.made import CACHE, told


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ({"moved_bytes": 1e6, "moved_tokens": 1024.0}, Verdict.MOVED),
        ({"moved_bytes": 1e6, "cached_tokens": 1024}, Verdict.MOVED),
        ({"moved_bytes": 1e6}, Verdict.MOVED),
        ({"moved_bytes": 1e6, "moved_tokens": 512.0}, Verdict.PARTLY),
        ({"moved_bytes": 0.0, "looked_up": True}, Verdict.NOTHING),
        ({"moved_bytes": 0.0, "looked_up": False}, Verdict.REFUSED),
        ({"moved_bytes": 0.0, "looked_up": None}, Verdict.NOTHING),
        # Nobody has seen the prompt before: the counters are late, another engine's, or the store is shared.
        ({"moved_bytes": 0.0, "cached_tokens": 1024, "looked_up": True}, Verdict.UNCLEAR),
        ({"moved_bytes": 0.0, "moved_tokens": 1024.0}, Verdict.UNCLEAR),
        ({"moved_bytes": 1e6, "cached_tokens": 0}, Verdict.UNCLEAR),
        ({"moved_bytes": 0.0, "cached_tokens": 0}, Verdict.NOTHING),
        ({"cached_tokens": 0}, Verdict.NOTHING),
        ({}, Verdict.UNCLEAR),
        # More than could come: others pull too, and only an answer tells what is its own.
        ({"moved_bytes": 1e6, "moved_tokens": 5000.0}, Verdict.UNCLEAR),
        ({"moved_bytes": 1e6, "moved_tokens": 5000.0, "cached_tokens": 1024}, Verdict.MOVED),
        ({"moved_bytes": 1e6, "cached_tokens": 1024, "usage": "no count"}, Verdict.UNCLEAR),
        ({"cached_tokens": 0, "faults": ("NaN",)}, Verdict.UNCLEAR),
        ({"moved_bytes": 0.0, "looked_up": None, "source_faults": ("NaN",)}, Verdict.NOTHING),
        # What two tell of one thing, and what can only be together.
        ({"moved_bytes": 1e6, "moved_tokens": 1024.0, "cached_tokens": 0}, Verdict.UNCLEAR),
        ({"moved_bytes": 1e6, "moved_tokens": 0.0, "cached_tokens": 1024}, Verdict.UNCLEAR),
        ({"moved_bytes": 1e6, "moved_tokens": 512.0, "cached_tokens": 1024}, Verdict.UNCLEAR),
        ({"moved_bytes": 1e6, "moved_tokens": 992.0, "cached_tokens": 1024}, Verdict.MOVED),
        ({"moved_bytes": 1e6, "moved_tokens": 5000.0, "cached_tokens": 512}, Verdict.PARTLY),
        ({"moved_bytes": 1e6, "moved_tokens": 1024.0, "cached_tokens": 5000}, Verdict.UNCLEAR),
        ({"moved_bytes": 1.0, "cached_tokens": 1024}, Verdict.UNCLEAR),
        ({"moved_bytes": 1e6, "cached_tokens": 1024, "looked_up": False}, Verdict.UNCLEAR),
        ({"moved_bytes": 1e6, "looked_up": False, "given_bytes": 0.0}, Verdict.UNCLEAR),
        ({"cached_tokens": 1024, "looked_up": False, "given_bytes": 0.0}, Verdict.UNCLEAR),
        ({"moved_bytes": 0.0, "looked_up": True, "given_bytes": 1e6}, Verdict.UNCLEAR),
        ({"moved_bytes": 0.0, "given_bytes": 1e6}, Verdict.UNCLEAR),
        # A source need not count what it gives, or count it at all; what it stored may be counted late.
        ({"moved_bytes": 1e6, "cached_tokens": 1024, "given_bytes": 0.0}, Verdict.MOVED),
        ({"moved_bytes": 1e6, "moved_tokens": 1024.0, "looked_up": True, "given_bytes": 0.0}, Verdict.MOVED),
        ({"moved_bytes": 1e6, "moved_tokens": 1024.0, "given_bytes": 1e6}, Verdict.MOVED),
        ({"moved_bytes": 0.0, "looked_up": False, "given_bytes": 1e6}, Verdict.REFUSED),
        ({"skipped": "source_is_self"}, Verdict.REFUSED),
        ({"failure": "500"}, Verdict.REFUSED),
        ({"hung_s": 20.0}, Verdict.HANGS),
    ],
)
def test_a_pull_is_judged_by_what_was_counted(other: dict[str, Any], verdict: Verdict) -> None:
    assert judged(Pull(1024, **other)) is verdict


def test_of_figures_that_contradict_it_is_told_who_says_what() -> None:
    pull = Pull(240, 0, 15360.0, 240.0, 0.0, looked_up=False)
    assert pull.doubt == (
        "figures contradict one another: the answer tells of 0 cached tokens; the consumer counts 240 tokens "
        "from peers and 15,360 bytes from peers; the source counts that it was asked for none and 0 bytes "
        "given"
    )
    assert Pull(240, moved_bytes=0.0, moved_tokens=240.0).doubt == (
        "figures contradict one another: the consumer counts 240 tokens from peers and 0 bytes from peers"
    )


def test_of_a_prompt_without_a_whole_block_nothing_is_known() -> None:
    assert judged(Pull(0, 0, 0.0)) is Verdict.UNCLEAR


def test_few_pairs_have_every_peer_once_as_source_and_once_as_consumer() -> None:
    assert chosen(["A", "B", "C"], 3) == ([("A", "B"), ("B", "C"), ("C", "A")], 3)
    pairs, left_out = chosen(["A", "B", "C", "D"], 100)
    assert (len(pairs), len(set(pairs)), left_out) == (12, 12, 0)


def test_the_rate_is_of_the_second_pull() -> None:
    pair = Pair("A", "B", first=Pull(64, moved_bytes=1e6, ttft_ms=1000.0))
    assert pair.rate_bytes_s is None
    assert replace(pair, again=Pull(64, moved_bytes=1e6, ttft_ms=100.0)).rate_bytes_s == 1e7


@pytest.mark.parametrize(
    ("wanted", "blocks", "limits", "expected"),
    [
        (1024, [16, 64], [8192], 1025),
        (1000, [16, None], [None], 993),
        (1024, [None], [512], 257),
        (10, [64], [131072], 257),
        (64, [10**9], [None], 65),  # what no engine has, and no memory
    ],
)
def test_a_prompt_fills_whole_blocks_and_one_token_more(
    wanted: int, blocks: list[int | None], limits: list[int | None], expected: int
) -> None:
    assert fitting(wanted, blocks, limits) == expected


def test_a_fresh_prompt_has_two_forms() -> None:
    fresh = Fresh.of(3)
    assert fresh != Fresh.of(3)
    assert sorted(fresh.shuffled().ids) == sorted(fresh.ids)
    assert fresh.form(as_text=False) == fresh.ids
    assert fresh.form(as_text=True) == " ".join(f"w{one}" for one in fresh.ids)


def test_who_differs_in_what_is_one_finding_with_all_names() -> None:
    other = Facts("m", "m", 8192, "0.32.0", cache={**CACHE, "block_size": "16"})
    alike = told("C", facts=other, alone=None)
    [found] = [one for one in compared([told("A"), told("B"), alike]) if one.check == "block size"]
    assert (found.severity, found.about) == (Severity.ERROR, ("A", "B", "C"))
    assert found.says.startswith("A, B: 32; C: 16; ")


SNAPSHOT = "/hub/models--m/snapshots/"
A_COMMIT, B_COMMIT = "0123456789abcdef" * 2 + "01234567", "fedcba9876543210" * 2 + "fedcba98"


@pytest.mark.parametrize(
    ("ours", "theirs", "says"),
    [
        ({"root": SNAPSHOT + A_COMMIT}, {"root": SNAPSHOT + B_COMMIT}, "A: 0123456789ab; B: fedcba987654; "),
        ({"root": SNAPSHOT + A_COMMIT}, {"revision": B_COMMIT}, "A: 0123456789ab; B: fedcba987654; "),
        ({"revision": "release-2025-01"}, {"revision": "release-2025-02"}, "A: release-2025-01; B: "),
        ({"root": SNAPSHOT + A_COMMIT + "/"}, {"revision": A_COMMIT}, None),
        ({"root": SNAPSHOT + A_COMMIT, "revision": "main"}, {"root": SNAPSHOT + A_COMMIT}, None),
        ({"root": SNAPSHOT + A_COMMIT[:20] + "..."}, {"root": SNAPSHOT + A_COMMIT}, None),
        ({"root": SNAPSHOT + A_COMMIT}, {"root": "/models/m/snapshots/deadbeefcafe-v2"}, None),
        ({"root": SNAPSHOT + A_COMMIT}, {}, None),
    ],
)
def test_revisions_are_compared_wherever_they_are_told(
    ours: dict[str, str], theirs: dict[str, str], says: str | None
) -> None:
    def one(name: str, of: dict[str, str]) -> Told:
        facts = Facts("m", of.get("root", "m"), 8192, "0.32.0", cache=CACHE)
        return told(name, facts=facts, configuration=Configuration(of.get("revision")))

    found = [one for one in compared([one("A", ours), one("B", theirs)]) if one.check == "revision"]
    assert [one.severity for one in found] == ([Severity.ERROR] if says else [])
    assert all(one.says.startswith(says or "") for one in found)


def test_a_revision_is_not_what_stops_a_pull_since_no_handshake_compares_it() -> None:
    one = [told(name, configuration=Configuration(commit)) for name, commit in zip("AB", "ab", strict=True)]
    assert differing(*one) == ([], ["revision"])


def test_another_hash_of_the_configuration_is_a_note_only() -> None:
    alone = told().alone
    assert alone is not None
    other = told("B", alone=replace(alone, fingerprint=Fingerprint("0.32.0", configuration="00000000")))
    assert [(one.severity, one.check) for one in compared([told("A"), other])] == [
        (Severity.NOTE, "configuration")
    ]


def test_what_one_peer_does_not_tell_is_not_compared() -> None:
    silent = told("B", facts=Facts(), alone=None, configuration=Configuration(revision="a"), ahead_s=None)
    assert list(compared([told("A"), silent])) == []


def test_clocks_far_apart_are_a_warning_about_the_two_ends() -> None:
    found = list(compared([told("A", ahead_s=-4.0), told("B"), told("C", ahead_s=4.0)]))
    assert [(one.check, one.about) for one in found] == [("clock", ("A", "C"))]


def diagnosis(pull: Pull, **other: Any) -> Any:
    """Of B pulling from A; other: what B tells else."""
    pairs = (Pair("A", "B", first=pull),)
    return diagnosed([told("A"), told("B", **other)], Measured(pairs, 0, 257))


def test_a_pull_that_moves_nothing_between_equals_is_laid_to_the_hash_seed() -> None:
    [found] = [
        one for one in diagnosis(Pull(256, moved_bytes=0.0, looked_up=True)).findings if one.check == "pull"
    ]
    assert (found.severity, found.value) == (Severity.ERROR, "nothing")
    assert "PYTHONHASHSEED" in found.change


def test_an_old_engine_explains_its_pull() -> None:
    old = diagnosis(
        Pull(256, moved_bytes=0.0, looked_up=False), facts=Facts("m", version="0.31.0", cache=CACHE)
    )
    [found] = [one for one in old.findings if one.check == "pull"]
    assert found.says.endswith("causes: B's parameter names")
    assert old.exit_code == 3


def test_a_part_is_a_warning() -> None:
    part = diagnosis(Pull(256, moved_bytes=9e3, moved_tokens=64.0))
    assert (part.worst, part.exit_code) == (Severity.WARNING, 1)


def test_pulls_of_others_are_noted() -> None:
    alone = told().alone
    assert alone is not None
    busy = diagnosis(Pull(256, moved_bytes=9e3, moved_tokens=256.0), alone=replace(alone, pulled_bytes=5.0))
    assert [(one.severity, one.check) for one in busy.findings if one.severity > Severity.UNTOLD] == [
        (Severity.NOTE, "traffic")
    ]
    assert busy.exit_code == 0


def test_a_pull_that_was_rescued_is_not_laid_to_the_hash_seed() -> None:
    slow = diagnosis(Pull(256, moved_bytes=0.0, looked_up=False, ttft_ms=10_400.0))
    [found] = [one for one in slow.findings if one.check == "pull"]
    assert "after 10 s, as when a pull hangs" in found.says
    assert found.change.startswith("Start B's engine again")
