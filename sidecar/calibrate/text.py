"""The report as text: the verdict first, then the table, the figures, what was set aside, what to do.

Rule: pure; 100 columns at most, so that it stands in a terminal and in an issue.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from sidecar.calibrate.crossover import Crossover, Shape
from sidecar.calibrate.headline import headline
from sidecar.calibrate.plan import Kind
from sidecar.calibrate.report import Report, Setting
from sidecar.calibrate.summary import Row, Spread
from sidecar.calibrate.verdicts import Measured, Verdict
from sidecar.calibrate.words import millis, rate, several, size
from sidecar.remote.facts import Facts

_COLUMNS = 100
_INDENT = 15
# Reasons of legs that were set aside are shown so often; the JSON has them all.
_MOST_REASONS = 5

_HEADINGS = ("prefix", "recompute", "min - max", "pull", "min - max", "delta", "moved", "legs")
_UNITS = ("tokens", "ms", "ms", "ms", "ms", "ms", "", "rec+pull")


def text(report: Report) -> str:
    """The whole report; the first line is the verdict."""
    parts = [headline(report), "", *_setting(report)]
    if report.rows:
        parts += ["", *_table(report.rows)]
    parts += ["", *_figures(report)]
    if report.aside or report.causes or report.gone:
        parts += ["", *_aside(report)]
    return "\n".join(parts).rstrip()


def _setting(report: Report) -> Iterator[str]:
    setting = report.setting
    yield _line("source", f"{setting.source}  {_engine(setting.pair.source)}")
    yield _line("consumer", f"{setting.consumer}  {_engine(setting.pair.consumer)}")
    yield _line("pulls from", setting.pair.target)
    limit = setting.pair.consumer.max_model_tokens
    model = f"{setting.model}, blocks of {setting.block_tokens} tokens"
    yield _line("model", model + (f", limit {limit:,} tokens" if limit else ""))
    yield _line("run", ", ".join(_run(report)))


def _engine(facts: Facts) -> str:
    version = f"vLLM {facts.version}" if facts.version else "version unknown"
    return f"sidecar before {version}" if facts.through_sidecar else version


def _run(report: Report) -> Iterator[str]:
    setting = report.setting
    yield several(setting.rounds, "round")
    yield f"seed {setting.seed}"
    yield _load(setting) if setting.load else "no background load"
    if setting.ranks > 1:
        yield several(setting.ranks, "data-parallel rank")
    if not setting.token_ids:
        yield "prompts of text (token ids were refused)"


def _load(setting: Setting) -> str:
    ended = f"{setting.load_answered:,} answered, {setting.load_failed:,} failed"
    return f"{several(setting.load, 'background request')} at a time on each engine ({ended})"


def _table(rows: Sequence[Row]) -> Iterator[str]:
    cells = [_HEADINGS, _UNITS, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _cells(row: Row) -> tuple[str, ...]:
    delta = "-" if row.delta_ms is None else f"{'+' if row.delta_ms > 0 else ''}{millis(row.delta_ms)}"
    counts = (row.recompute.count if row.recompute else 0, row.pull.count if row.pull else 0)
    legs = f"{counts[0]}+{counts[1]}" + (f" ({row.aside} aside)" if row.aside else "")
    moved = "-" if row.moved_bytes is None else size(row.moved_bytes)
    return (f"{row.prefix_tokens:,}", *_spread(row.recompute), *_spread(row.pull), delta, moved, legs)


def _spread(spread: Spread | None) -> tuple[str, str]:
    if spread is None:
        return "-", "-"
    return millis(spread.median), f"{millis(spread.least)} - {millis(spread.most)}"


def _figures(report: Report) -> Iterator[str]:
    figures, found = report.figures, report.crossover
    if report.recompute and report.pull:
        yield _line("recompute(n)", f"{report.recompute.text} ms     k = n / 1000 tokens")
        yield _line("pull(n)", f"{report.pull.text} ms")
    if found and found.shape is Shape.CROSSES:
        at = f"{found.tokens:,.0f}" if found.tokens else f"under {found.shortest:,}"
        yield _line("crossover", f"{at} tokens (95 %: {_interval(found)})")
    if found and report.recommended is not None:
        yield _line("recommended", f"minCachedTokenDelta: {report.recommended:,}  ({_why(report, found)})")
    if figures.floor_ms is not None:
        half = figures.floor_half_width_ms or 0.0
        yield _line("floor", f"{millis(figures.floor_ms)} ms ± {millis(half)}, the fixed cost of a pull")
    if figures.kv_bytes_per_token is not None:
        yield _line("KV", f"{figures.kv_bytes_per_token:,.0f} bytes per token")
    if figures.gb_per_s is not None:
        yield _line("bandwidth", f"{rate(figures.gb_per_s)} effective, by what each further token costs")
    yield from _session(report)
    if any(one.verdict.counts for one in report.measured):
        yield _line("verified", _verified(report))


def _session(report: Report) -> Iterator[str]:
    first = [one for one in report.warm if one.verdict is Verdict.MOVED and one.ttft_ms]
    if first and report.figures.setup_ms is not None:
        took = f"the first pull took {millis(max(one.ttft_ms or 0.0 for one in first))} ms"
        more = report.figures.setup_ms
        above = f"{millis(more)} ms more than a later one" if more > 0 else "no more than later ones"
        yield _line("session", f"{took}, {above} (its set-up; discarded)")


def _interval(found: Crossover) -> str:
    low = f"{found.low:,.0f}" if found.low else f"under {found.shortest:,}"
    return f"{low} to {found.high:,.0f}"


def _why(report: Report, found: Crossover) -> str:
    if found.shape is Shape.PULLS_WIN:
        return "the shortest length measured"
    return (
        f"{found.high:,.0f}, from where it is certain, x headroom {report.setting.headroom:g},"
        f" in blocks of {report.setting.block_tokens}"
    )


def _verified(report: Report) -> str:
    counted = Counter(one.verdict for one in report.measured)
    by = (
        "both engines' counters"
        if _source_counts(report)
        else "the consumer's counters (the source has none)"
    )
    pulls = f"{several(counted[Verdict.MOVED], 'pull')} moved about the whole prefix"
    controls = f"{several(counted[Verdict.CLEAN], 'control')} moved 0 bytes"
    return f"{pulls}, {controls}, by {by}"


def _source_counts(report: Report) -> bool:
    return any(one.rise.given_chunks is not None for one in (*report.warm, *report.measured))


def _aside(report: Report) -> Iterator[str]:
    if report.gone:
        yield from _paragraph("stopped", report.gone)
    kinds = Counter(
        (one.leg.kind, one.verdict, f"{_rank(report, one)}{one.reason}")
        for one in (*_warm_aside(report), *report.aside)
    )
    for (kind, verdict, reason), count in kinds.most_common(_MOST_REASONS):
        name = several(count, "control" if kind is Kind.RECOMPUTE else "pull")
        yield from _paragraph("set aside", f"{name} ({verdict}): {reason}")
    if len(kinds) > _MOST_REASONS:
        yield _line("", f"and {len(kinds) - _MOST_REASONS} more reasons: --json has them")
    for number, cause in enumerate(report.causes):
        yield from _paragraph("" if number else "likely", f"- {cause}")


def _rank(report: Report, one: Measured) -> str:
    return f"rank {one.leg.rank}: " if report.setting.ranks > 1 else ""


def _warm_aside(report: Report) -> list[Measured]:
    return [one for one in report.warm if not one.verdict.counts]


def _paragraph(name: str, content: str) -> list[str]:
    hanging = _INDENT + (2 if content.startswith("- ") else 0)
    return textwrap.wrap(
        _line(name, content),
        _COLUMNS,
        subsequent_indent=" " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _line(name: str, content: str) -> str:
    return f"{name:<{_INDENT}}{content}"
