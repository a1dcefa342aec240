"""Writes a diagnosis as text for a terminal: peers, their checks, the matrix of pulls, gates, findings.

Rule: pure; at most 80 columns, and colours only where they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sidecar.doctor.diagnosis import Diagnosis
from sidecar.doctor.findings import Finding, Severity
from sidecar.doctor.gates import State
from sidecar.doctor.paint import Paint, cut, hung, padded, size
from sidecar.doctor.pulls import Pair, Verdict
from sidecar.doctor.told import Told

# The width of a terminal that nobody has widened.
COLUMNS = 80
_CHECK_COLUMNS, _CELL_COLUMNS = 22, 18

_SEVERITIES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_VERDICTS = {
    Verdict.MOVED: "green",
    Verdict.PARTLY: "yellow",
    Verdict.UNCLEAR: "yellow",
    Verdict.NOTHING: "red",
    Verdict.REFUSED: "red",
    Verdict.HANGS: "red",
    Verdict.UNREACHABLE: "red",
}
_STATES = {State.PASS: "green", State.FAIL: "red", State.UNTOLD: "yellow"}
_SUBJECT_COLUMNS = 9
_RESULTS = {
    Severity.FINE: "all well",
    Severity.UNTOLD: "nothing is wrong that peers tell",
    Severity.NOTE: "nothing is wrong that peers tell",
    Severity.WARNING: "warnings",
    Severity.ERROR: "errors",
}


def report(diagnosis: Diagnosis, paint: Paint) -> Iterator[str]:
    """Its lines."""
    yield f"{len(diagnosis.told)} peers, {_tried(diagnosis)}, prompts of {diagnosis.prompt_tokens:,} tokens"
    yield ""
    yield from _peers(diagnosis.told)
    yield from _checks(diagnosis, paint)
    yield from _matrix(diagnosis, paint)
    yield from _gates(diagnosis, paint)
    yield from _findings(diagnosis, paint)
    yield from _untold(diagnosis)
    yield ""
    yield f"Result: {_RESULTS[diagnosis.worst]} (exit code {diagnosis.exit_code})"


def _tried(diagnosis: Diagnosis) -> str:
    if diagnosis.gates:
        return f"the gates of a pull from {diagnosis.told[0].name} to {diagnosis.told[1].name}"
    pairs = len(diagnosis.pairs)
    return f"{pairs} pair{'s' if pairs != 1 else ''}" + (
        f" ({diagnosis.left_out} left out)" if diagnosis.left_out else ""
    )


def _peers(all_told: Sequence[Told]) -> Iterator[str]:
    for told in all_told:
        kind = "sidecar" if told.facts.through_sidecar else "engine"
        kind = "no answer" if told.failure else kind
        yield f"  {told.name}  {told.peer.place.url}  {kind}, P2P {told.peer.p2p.netloc}"


def _checks(diagnosis: Diagnosis, paint: Paint) -> Iterator[str]:
    """A table of one-word values, as many peers side by side as there is room for."""
    beside = (COLUMNS - _CHECK_COLUMNS) // _CELL_COLUMNS
    shown = [told.name for told in diagnosis.told if not told.failure]
    for at in range(0, len(shown), beside):
        names = shown[at : at + beside]
        cells = {name: {finding.check: finding for finding in diagnosis.of(name)} for name in names}
        yield ""
        yield _row("", [padded(name, _CELL_COLUMNS) for name in names])
        for check in dict.fromkeys(check for name in names for check in cells[name]):
            row = [_cell(cells[name].get(check), paint) for name in names]
            yield _row(check, row)


def _cell(finding: Finding | None, paint: Paint) -> str:
    if finding is None:
        return padded("", _CELL_COLUMNS)
    text = padded(cut(finding.value, _CELL_COLUMNS - 2), _CELL_COLUMNS)
    return paint(text, _SEVERITIES.get(finding.severity))


def _row(head: str, cells: Sequence[str]) -> str:
    return f"  {padded(head, _CHECK_COLUMNS - 2)}{''.join(cells)}".rstrip()


def _matrix(diagnosis: Diagnosis, paint: Paint) -> Iterator[str]:
    names = [told.name for told in diagnosis.told]
    if not diagnosis.pairs:
        return
    became = {(pair.source, pair.consumer): pair.became for pair in diagnosis.pairs}
    width = max(len(Verdict.UNREACHABLE) + 2, 4)
    beside = (COLUMNS - 8) // width
    for at in range(0, len(names), beside):
        across = names[at : at + beside]
        yield ""
        yield "Pulls: the peer of the row from the peer of the column"
        yield "  " + padded("", 6) + "".join(padded(name, width) for name in across).rstrip()
        for consumer in names:
            cells = [
                _verdict(became.get((source, consumer)), width, paint)
                if source != consumer
                else padded("·", width)
                for source in across
            ]
            yield f"  {padded(consumer, 6)}{''.join(cells)}".rstrip()
    yield ""
    for pair in diagnosis.pairs:
        yield from hung(f"  {padded(f'{pair.source} to {pair.consumer}', 9)}", _pair(pair), COLUMNS)


def _verdict(verdict: Verdict | None, width: int, paint: Paint) -> str:
    text = padded(str(verdict or Verdict.UNTRIED), width)
    return paint(text, _VERDICTS.get(verdict)) if verdict else text


def _pair(pair: Pair) -> str:
    pull, again = pair.shown, pair.again
    if pull is None:
        return f"{pair.became}: {pair.why}" if pair.why else str(pair.became)
    if pull.hung_s is not None:
        return f"{pair.became}: no answer within {pull.hung_s:g} s"
    if pull.doubt:
        return f"{pair.became}: what came is not known"
    came = "tokens not told" if pull.came_tokens is None else f"{pull.came_tokens:,.0f} tokens"
    moved = "" if pull.moved_bytes is None else f", {size(pull.moved_bytes)}"
    took = "" if pull.ttft_ms is None else f"; first token after {pull.ttft_ms:,.1f} ms"
    if again and again is not pull and again.ttft_ms is not None:
        rate = f", {size(pair.rate_bytes_s)}/s at least" if pair.rate_bytes_s else ""
        took += f", the next time {again.ttft_ms:,.1f} ms{rate}"
    return f"{pair.became}: {came} of {pull.prefix_tokens:,}{moved}{took}"


def _gates(diagnosis: Diagnosis, paint: Paint) -> Iterator[str]:
    if not diagnosis.gates:
        return
    yield ""
    yield "Gates"
    for gate in diagnosis.gates:
        state = paint(padded(str(gate.state), 10), _STATES[gate.state])
        yield f"  {gate.number}  {state}{gate.name}"
        yield from hung(" " * 15, gate.evidence, COLUMNS)
        if gate.state is State.PASS:
            yield from hung(" " * 15, f"proves: {gate.proves}", COLUMNS)


def _findings(diagnosis: Diagnosis, paint: Paint) -> Iterator[str]:
    shown = sorted(
        (finding for finding in diagnosis.findings if finding.severity > Severity.UNTOLD),
        key=lambda finding: -finding.severity,
    )
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in shown:
        key = (finding.severity.word, finding.check, finding.says, finding.change)
        alike.setdefault(key, []).append(finding)
    yield ""
    yield "Findings" if shown else "No findings."
    for group in alike.values():
        yield from _finding(group, paint)


def _finding(group: Sequence[Finding], paint: Paint) -> Iterator[str]:
    """One, with the names of the others of which the same is so."""
    finding, *others = group
    also = f" (also {', '.join(map(_about, others))})" if others else ""
    word = paint(padded(finding.severity.word, 9), _SEVERITIES[finding.severity])
    about = padded(_about(finding), _SUBJECT_COLUMNS)
    indent = " " * (2 + 9 + len(about))
    first, *further = hung(indent, f"{finding.check}{also}: {finding.says}", COLUMNS)
    yield f"  {word}{about}{first.removeprefix(indent)}"
    yield from further
    if finding.change:
        yield from hung(f"{indent}→ ", finding.change, COLUMNS)


def _about(finding: Finding) -> str:
    if finding.check in ("pull", "hash seed", "gates") or finding.check.startswith("gate "):
        return " to ".join(finding.about)
    return ", ".join(finding.about)


def _untold(diagnosis: Diagnosis) -> Iterator[str]:
    """What nobody tells, once for all peers of whom it is so."""
    who: dict[tuple[str, str], list[str]] = {}
    for finding in diagnosis.findings:
        if finding.severity is Severity.UNTOLD:
            who.setdefault((finding.check, finding.says), []).extend(finding.about)
    if who:
        yield ""
        yield "Not told"
    for (check, says), names in who.items():
        yield from hung(f"  {padded(', '.join(names), _SUBJECT_COLUMNS + 9)}", f"{check}: {says}", COLUMNS)
