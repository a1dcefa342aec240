"""What pairs are told of their pulls: never two things that contradict each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sidecar.doctor.between import alike
from sidecar.doctor.diagnosis import Diagnosis, Measured, diagnosed
from sidecar.doctor.findings import Finding, Severity
from sidecar.doctor.gates import Shown, State
from sidecar.doctor.pulls import Pair, Pull, Verdict
from sidecar.remote.facts import Facts
from tests.doctor.made import CACHE, told

MOVED = Pull(256, 256, 262144.0, 256.0, 262144.0, True, ttft_ms=20.0)
NOTHING = Pull(256, 0, 0.0, looked_up=False)
HUNG = Pull(256, hung_s=20.0)
NAN = "vllm:kv_offload_tiering_read_bytes_total is NaN"


def diagnosis(*pairs: Pair, **of: dict[str, Any]) -> Diagnosis:
    """Of the peers in these pairs; of: by name, what one tells else."""
    names = sorted({name for pair in pairs for name in (pair.source, pair.consumer)})
    return diagnosed([told(name, **of.get(name, {})) for name in names], Measured(pairs, 0, 257))


def of(found: Diagnosis, check: str) -> list[Finding]:
    """The findings of a check."""
    return [finding for finding in found.findings if finding.check == check]


def test_counters_that_are_unusable_are_named_and_no_seed_is_blamed() -> None:
    spoilt = Pull(256, 0, None, looked_up=False, faults=(NAN,))
    found = diagnosis(Pair("A", "B", first=spoilt), Pair("B", "A", first=MOVED))
    [counters] = of(found, "counters")
    assert (counters.severity, counters.about, counters.value) == (Severity.WARNING, ("B",), "unusable")
    assert counters.says == f"its counters are unusable: {NAN}"
    [pull] = of(found, "pull")
    assert (pull.severity, pull.value) == (Severity.WARNING, "unclear")
    assert pull.says == "could not tell what B got: counters unusable"
    assert not any("seeds differ" in one.says or "HASHSEED" in one.change for one in found.findings)
    assert found.exit_code == 1


def test_a_sources_unusable_counters_leave_what_the_consumer_counted() -> None:
    found = diagnosis(Pair("A", "B", first=replace(MOVED, given_bytes=None, source_faults=(NAN, NAN))))
    assert [(one.check, one.about) for one in found.findings if one.severity > Severity.NOTE] == [
        ("counters", ("A",))
    ]
    assert found.pairs[0].became is Verdict.MOVED


def test_where_blocks_moved_the_other_way_the_seed_is_not_the_cause() -> None:
    found = diagnosis(Pair("A", "B", first=MOVED), Pair("B", "A", first=NOTHING))
    [pull] = of(found, "pull")
    assert "their hash seeds agree, since blocks moved between them otherwise" in pull.says
    assert "HASHSEED" not in pull.change


def test_seeds_agree_by_way_of_others_too() -> None:
    pairs = (
        Pair("A", "B", first=MOVED),
        Pair("B", "C", first=replace(MOVED, moved_tokens=64.0, cached_tokens=64)),
        Pair("C", "A", first=NOTHING),
        Pair("D", "A", first=NOTHING),
    )
    group = alike(pairs)
    assert group["A"] == group["B"] == group["C"] != group["D"]
    by_c, by_d = of(diagnosis(*pairs), "pull")[1:]
    assert "hash seeds agree" in by_c.says
    assert "their hash seeds differ, most likely" in by_d.says


def test_the_one_of_three_whose_seed_differs_is_named() -> None:
    pairs = [Pair("A", "B", first=MOVED), Pair("B", "C", first=NOTHING), Pair("C", "A", first=NOTHING)]
    found = of(diagnosis(*pairs), "pull")
    assert len(found) == 2
    for one in found:
        assert one.says.endswith("their hash seeds differ, most likely: that of C from that of A and B")
        assert one.change.startswith("Start C with the PYTHONHASHSEED of A and B; then compare")
    [alone] = of(diagnosis(pairs[1]), "pull")
    assert alone.change.startswith("Start all peers with one PYTHONHASHSEED; then compare")


def test_what_two_others_differ_in_is_not_the_cause_of_a_pair() -> None:
    other = {"facts": Facts("m", "m", 8192, "0.32.0", cache={**CACHE, "block_size": "16"}), "alone": None}
    pairs = [Pair(first, second, first=NOTHING) for first, second in ("AB", "BC")]
    alike_, unlike = of(diagnosis(*pairs, C=other), "pull")
    assert "hash seeds differ" in alike_.says
    assert "causes: block size" in unlike.says


def test_peers_that_differ_in_what_may_matter_are_not_called_equal() -> None:
    other = {"facts": Facts("m", "m", 8192, "0.33.0", cache=CACHE)}
    [pull] = of(diagnosis(Pair("A", "B", first=NOTHING), B=other), "pull")
    assert "peers differ in version, or their hash seeds do" in pull.says
    assert "equal:" not in pull.says


def test_what_differs_and_moved_is_not_said_to_stop_it() -> None:
    other = {"facts": Facts("m", "m", 8192, "0.32.0", cache={**CACHE, "block_size": "16"}), "alone": None}
    [found] = of(diagnosis(Pair("A", "B", first=MOVED), B=other), "block size")[-1:]
    assert (found.severity, found.value) == (Severity.ERROR, "differs")
    assert found.says == "A: 32; B: 16; yet blocks moved from A to B: what moved may be wrong"


def test_sizes_that_were_measured_and_are_disproved_by_a_pull_are_a_note() -> None:
    alone = told().alone
    assert alone is not None
    found = diagnosis(Pair("A", "B", first=MOVED), B={"alone": replace(alone, stored_bytes=3 * 256 * 1024.0)})
    assert [(one.severity, one.check) for one in found.findings if one.severity > Severity.UNTOLD] == [
        (Severity.NOTE, "KV per token")
    ]


@pytest.mark.parametrize(
    ("again", "verdict", "code"),
    [(MOVED, Verdict.MOVED, 0), (HUNG, Verdict.HANGS, 3), (NOTHING, Verdict.REFUSED, 3)],
)
def test_of_two_pulls_the_worse_is_told(again: Pull, verdict: Verdict, code: int) -> None:
    found = diagnosis(Pair("A", "B", first=MOVED, again=again))
    assert (found.pairs[0].became, found.exit_code) == (verdict, code)
    assert not any("hash seeds differ" in one.says for one in found.findings)


def test_bytes_without_tokens_are_told_as_bytes() -> None:
    [seed] = of(diagnosis(Pair("A", "B", first=Pull(256, moved_bytes=262144.0))), "hash seed")
    assert seed.says == "256.0 KiB came, of how many tokens is not told: hash seeds agree"


def test_usage_that_cannot_be_is_no_proof_of_tokens_and_names_its_peer() -> None:
    usage = "its usage tells of 0 prompt tokens, 257 were sent"
    alone = told().alone
    assert alone is not None
    found = diagnosis(
        Pair("A", "B", first=replace(MOVED, usage=usage)), B={"alone": replace(alone, prompt_tokens=None)}
    )
    assert [
        (one.severity.word, one.check, one.value) for one in found.findings if one.severity > Severity.NOTE
    ] == [
        ("warning", "token details", "unusable"),
        ("warning", "pull", "unclear"),
    ]
    assert of(found, "pull")[0].says == f"could not tell what B got: {usage}"
    assert of(found, "tokenizer") == []


def test_gates_of_figures_that_cannot_be_used_are_not_told() -> None:
    def states(pull: Pull, control: Pull, kept: float = 256.0) -> list[State]:
        shown = Shown("A", "B", "", 256, kept, None, False, None, pull, control)
        both = [told("A"), told("B")]
        return [gate.state for gate in diagnosed(both, Measured((), 0, 257, shown)).gates]

    clean = Pull(256, 0, 0.0)
    spoilt = replace(
        MOVED, moved_bytes=None, given_bytes=None, looked_up=None, faults=(NAN,), source_faults=(NAN,)
    )
    assert states(MOVED, clean)[2:] == [State.PASS] * 3
    assert states(spoilt, replace(clean, moved_bytes=None, faults=(NAN,)))[2:] == [State.UNTOLD] * 3
    assert states(MOVED, clean, kept=5000.0)[0] is State.UNTOLD


def test_a_consumer_that_answers_nothing_at_all_is_not_said_to_hang_by_its_pulls() -> None:
    [busy] = of(diagnosis(Pair("A", "B", first=replace(HUNG, busy=True))), "pull")
    [hangs] = of(diagnosis(Pair("A", "B", first=HUNG)), "pull")
    assert "B is busy, or hangs altogether" in busy.says
    assert busy.change.endswith("--timeout.")
    assert hangs.change.startswith("Start B's engine again")
