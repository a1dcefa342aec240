"""A whole diagnosis, put together from what was told and measured.

Rule: pure; the one place that says which findings there are and in what order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.doctor.agreement import compared, differing
from sidecar.doctor.checks import examined
from sidecar.doctor.findings import Finding, Severity, exit_code, worst
from sidecar.doctor.fronts import fronted
from sidecar.doctor.gates import Gate, Shown, failed, gates
from sidecar.doctor.pulls import Pair, paired
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
    common = list(compared(told))
    own = {name: _causes(found, name) for name in (one.name for one in told)}
    causes = {
        (pair.source, pair.consumer): (
            *differing(common, pair.source, pair.consumer),
            *(f"{name}'s {check}" for name in (pair.source, pair.consumer) for check in own[name]),
        )
        for pair in measured.pairs
    }
    found += [*common, *paired(measured.pairs, causes)]
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
