"""A whole diagnosis, put together from what was told and measured.

Rule: pure; the one place that says which findings there are and in what order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sidecar.doctor.agreement import compared, differing
from sidecar.doctor.between import Causes, alike, apart, paired
from sidecar.doctor.checks import examined
from sidecar.doctor.findings import Finding, Severity, exit_code, worst
from sidecar.doctor.fronts import fronted
from sidecar.doctor.gates import Gate, Shown, failed, gates
from sidecar.doctor.pulls import Pair, Verdict
from sidecar.doctor.told import Told

# Warnings that are reason enough for a pull to move nothing.
_CAUSES = frozenset(("parameter names",))


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """left_out: pairs beyond --max-pairs. gates: empty unless asked for. prompt_tokens: of each prompt."""

    told: tuple[Told, ...]
    pairs: tuple[Pair, ...]
    findings: tuple[Finding, ...]
    gates: tuple[Gate, ...]
    prompt_tokens: int
    left_out: int = 0

    @property
    def worst(self) -> Severity:
        """Of all findings."""
        return worst(self.findings)

    @property
    def exit_code(self) -> int:
        """See findings.exit_code."""
        return exit_code(self.findings)

    def of(self, name: str) -> tuple[Finding, ...]:
        """The findings about one peer alone, in the order of the checks."""
        return tuple(finding for finding in self.findings if finding.about == (name,))


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured between peers."""

    pairs: tuple[Pair, ...]
    left_out: int
    prompt_tokens: int
    shown: Shown | None = None


def diagnosed(told: Sequence[Told], measured: Measured) -> Diagnosis:
    """All findings: of each peer, of its sidecar, of what peers have to share, of pairs, of gates."""
    found = [finding for one in told for finding in (*examined(one), *fronted(one), *_traffic(one))]
    found += _counters(told, measured)
    moved = [(pair.source, pair.consumer) for pair in measured.pairs if pair.became is Verdict.MOVED]
    seeds = alike(measured.pairs)
    causes = {(pair.source, pair.consumer): _explained(told, found, pair, seeds) for pair in measured.pairs}
    found += [*compared(told, moved), *paired(measured.pairs, causes)]
    if measured.left_out:
        names = tuple(one.name for one in told)
        of = measured.left_out + len(measured.pairs)
        says = f"{measured.left_out} of {of} were left out (--max-pairs)"
        found.append(Finding(Severity.NOTE, "pairs", names, "left out", says))
    judged = gates(measured.shown) if measured.shown else ()
    if measured.shown:
        found += failed(measured.shown, judged)
    return Diagnosis(
        tuple(told), measured.pairs, tuple(found), judged, measured.prompt_tokens, measured.left_out
    )


def _explained(
    told: Sequence[Told], found: Sequence[Finding], pair: Pair, seeds: Mapping[str, int]
) -> Causes:
    """What makes nothing move between the two."""
    by_name = {one.name: one for one in told}
    names = pair.source, pair.consumer
    certain, possible = differing(*(by_name[name] for name in names))
    own = [f"{name}'s {check}" for name in names for check in _causes(found, name)]
    same_seed = seeds[pair.source] == seeds[pair.consumer]
    return Causes([*certain, *own], possible, same_seed, apart(seeds, pair))


def _counters(told: Sequence[Told], measured: Measured) -> Iterator[Finding]:
    """Of each peer what it counted so that nothing can be known by it."""
    faults: dict[str, dict[str, None]] = {one.name: {} for one in told}
    for one in told:
        faults[one.name].update(dict.fromkeys(one.alone.faults if one.alone else ()))
    shown = measured.shown
    pulls = [
        (pair.source, pair.consumer, pull) for pair in measured.pairs for pull in (pair.first, pair.again)
    ]
    pulls += [(shown.source, shown.consumer, shown.control)] if shown else []
    for source, consumer, pull in pulls:
        faults[consumer].update(dict.fromkeys(pull.faults if pull else ()))
        faults[source].update(dict.fromkeys(pull.source_faults if pull else ()))
    for name, why in faults.items():
        if why:
            says = f"its counters are unusable: {'; '.join(list(why)[:_SHOWN_FAULTS])}"
            yield Finding(Severity.WARNING, "counters", (name,), "unusable", says, _ONE_ENGINE)


_ONE_ENGINE = (
    "Look at its /metrics and at what stands between: its URL has to be of one engine, not of several. One "
    "that was started again in between counts from zero: look again."
)
# One of them is reason enough to look.
_SHOWN_FAULTS = 3


def _causes(found: Sequence[Finding], name: str) -> Sequence[str]:
    """The checks of one peer that explain why nothing moves to or from it."""
    return [
        finding.check
        for finding in found
        if finding.about == (name,)
        and (finding.severity is Severity.ERROR or finding.check in _CAUSES)
        and finding.severity >= Severity.WARNING
    ]


def _traffic(told: Told) -> Sequence[Finding]:
    """What else runs there while it is examined."""
    if told.alone is None or not told.alone.pulled_bytes:
        return ()
    says = f"read {told.alone.pulled_bytes:,.0f} bytes from peers unasked: its counters are not ours alone"
    return (Finding(Severity.NOTE, "traffic", (told.name,), "pulls", says),)
