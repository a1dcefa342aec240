"""The picture: both curves with their bands, what was measured, the crossover and the threshold, as SVG.

Rule: pure; one file that needs nothing else, readable on light and on dark pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from sidecar.calibrate.axes import Axis, around, round_ticks, spaced
from sidecar.calibrate.crossover import Shape
from sidecar.calibrate.curves import between
from sidecar.calibrate.plan import Kind
from sidecar.calibrate.report import Report
from sidecar.calibrate.summary import Row, Spread
from sidecar.calibrate.words import millis, rate

WIDTH, HEIGHT = 880, 540
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 856, 92, 466
_POINTS = 120
"""Of a curve: smooth at this size."""
_LABEL_PX = 52
"""Between two lengths on the axis: `49,152` is 42 wide."""
_CAP_PX = 5
_NAME_PX = 172
"""So wide is `minCachedTokenDelta`, with its distance from the line."""
_CROSSOVER_PX = 128
"""The same of `crossover 12,345`."""

# Blue and vermilion, told apart by those who see fewer colours too (Okabe and Ito); lighter on dark pages.
_STYLE = """
.page{fill:#fff}.text{fill:#1f2328}.quiet{fill:#59636e}.grid{stroke:#e4e8ec}.frame{stroke:#8c959f}
.recompute{stroke:#c4501b}.recompute-fill{fill:#c4501b}.pull{stroke:#0067a5}.pull-fill{fill:#0067a5}
.mark{stroke:#1f2328}.halo{stroke:#fff}.chosen{stroke:#1a7f37}.chosen-text{fill:#1a7f37}
text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif}
.title{font-size:18px;font-weight:600}.small{font-size:12px}.bold{font-weight:600}
.label{paint-order:stroke;stroke-width:4px;stroke-linejoin:round}
@media(prefers-color-scheme:dark){.page{fill:#0d1117}.text{fill:#e6edf3}.quiet{fill:#9198a1}
.grid{stroke:#21262d}.frame{stroke:#6e7681}.recompute{stroke:#f0883e}.recompute-fill{fill:#f0883e}
.pull{stroke:#58a6ff}.pull-fill{fill:#58a6ff}.mark{stroke:#e6edf3}.halo{stroke:#0d1117}
.chosen{stroke:#3fb950}.chosen-text{fill:#3fb950}}
"""


@dataclass(frozen=True, slots=True)
class _Plane:
    x: Axis
    y: Axis


def svg(report: Report) -> str:
    """The picture; where nothing was measured a frame that says so."""
    plane = _plane(report)
    parts = [*_head(report)]
    if plane is None:
        parts.append(_text((WIDTH / 2, HEIGHT / 2), "nothing was measured", "quiet", "middle"))
    else:
        parts += [*_grid(plane, report.rows), *_bands(plane, report), *_marks(plane, report)]
        parts += [*_measured(plane, report.rows), *_legend(report)]
    text = "\n".join([*parts, "</svg>"]) + "\n"
    # ASCII: it may be written to a standard output of any encoding.
    return text.encode("ascii", "xmlcharrefreplace").decode()


def _plane(report: Report) -> _Plane | None:
    times = [
        ms for row in report.rows for one in (row.recompute, row.pull) if one for ms in (one.least, one.most)
    ]
    if not times:
        return None
    lengths: list[float] = [row.prefix_tokens for row in report.rows]
    return _Plane(
        around([*lengths, *_thresholds(report)], _LEFT, _RIGHT, room=0.04),
        around(times, _BOTTOM, _TOP, room=0.06),
    )


def _thresholds(report: Report) -> list[float]:
    return [float(report.recommended)] if report.recommended else []


def _head(report: Report) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        f' height="{HEIGHT}" role="img">'
    )
    yield f"<title>{escape(_title(report))}</title><style>{_STYLE}</style>"
    yield f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="8"/>'
    yield _text((_LEFT, 34), _title(report), "text title")
    yield _text((_LEFT, 56), _subtitle(report), "quiet")


def _title(report: Report) -> str:
    found = report.crossover
    if found is None:
        return "Pull or recompute? Not measured well enough to tell"
    return {
        Shape.CROSSES: f"Pulling beats computing from {found.tokens or found.high or 0:,.0f} tokens on",
        Shape.PULLS_WIN: f"Pulling beats computing at every length from {found.shortest:,} tokens on",
        Shape.COMPUTING_WINS: f"Computing beats pulling up to {found.longest:,} tokens",
        Shape.UNCLEAR: "Pulling or computing: the measurements do not tell",
    }[found.shape]


def _subtitle(report: Report) -> str:
    setting, figures = report.setting, report.figures
    told = [setting.model, f"{setting.rounds} rounds"]
    if setting.load:
        told.append(f"{setting.load} background requests on each engine")
    if figures.floor_ms is not None:
        told.append(f"a pull costs {millis(figures.floor_ms)} ms")
    if figures.gb_per_s is not None:
        told.append(f"then moves {rate(figures.gb_per_s)}")
    return " · ".join(told)


def _grid(plane: _Plane, rows: Sequence[Row]) -> Iterator[str]:
    for tick in round_ticks(plane.y):
        y = plane.y.at(tick)
        yield _line((_LEFT, y), (_RIGHT, y), "grid")
        yield _text((_LEFT - 9, y + 4), f"{tick:,.6g}", "quiet small", "end")
    for length in spaced(plane.x, [row.prefix_tokens for row in rows], _LABEL_PX):
        x = plane.x.at(length)
        yield _line((x, _TOP), (x, _BOTTOM), "grid")
        yield _line((x, _BOTTOM), (x, _BOTTOM + 5), "frame")
        yield _text((x, _BOTTOM + 20), f"{length:,.0f}", "quiet small", "middle")
    yield _line((_LEFT, _BOTTOM), (_RIGHT, _BOTTOM), "frame")
    yield _line((_LEFT, _TOP), (_LEFT, _BOTTOM), "frame")
    yield _text(((_LEFT + _RIGHT) / 2, _BOTTOM + 44), "prefix, tokens (log scale)", "text", "middle")
    middle = (_TOP + _BOTTOM) / 2
    yield (
        f'<text class="text" text-anchor="middle" transform="translate(20 {middle:.0f}) rotate(-90)">'
        "time to first token, ms (log scale)</text>"
    )


def _bands(plane: _Plane, report: Report) -> Iterator[str]:
    for kind, curve in ((Kind.RECOMPUTE, report.recompute), (Kind.PULL, report.pull)):
        if curve is None or len(report.rows) < 2:
            continue
        lengths = between(report.rows[0].prefix_tokens, report.rows[-1].prefix_tokens, _POINTS)
        upper = [_at(plane, n, curve.at(n) + curve.half_width(n)) for n in lengths]
        lower = [_at(plane, n, curve.at(n) - curve.half_width(n)) for n in lengths]
        band = " ".join([*upper, *lower[::-1]])
        line = " ".join(_at(plane, n, curve.at(n)) for n in lengths)
        yield f'<polygon class="{kind}-fill" points="{band}" opacity="0.18"/>'
        yield f'<polyline class="{kind}" points="{line}" fill="none" stroke-width="2.5"/>'


def _at(plane: _Plane, tokens: float, ms: float) -> str:
    return f"{plane.x.at(tokens):.1f},{plane.y.at(max(ms, plane.y.least)):.1f}"


def _marks(plane: _Plane, report: Report) -> Iterator[str]:
    """The threshold, and the crossover with its interval."""
    if report.recommended:
        yield from _threshold(plane.x.at(report.recommended), report.recommended)
    found = report.crossover
    if found and found.shape is Shape.CROSSES and found.tokens and report.pull:
        x, y = plane.x.at(found.tokens), plane.y.at(report.pull.at(found.tokens))
        low, high = plane.x.at(found.low or found.shortest), plane.x.at(found.high or found.longest)
        yield (
            f'<rect class="text" x="{low:.1f}" y="{_TOP}" width="{max(1.0, high - low):.1f}"'
            f' height="{_BOTTOM - _TOP}" opacity="0.09"/>'
        )
        yield _line((x, _TOP), (x, _BOTTOM), "mark", dashes="3 4")
        yield f'<circle class="mark page" cx="{x:.1f}" cy="{y:.1f}" r="5.5" stroke-width="2"/>'
        told = f"crossover {found.tokens:,.0f}"
        side, anchor = (low - 8, "end") if low > _LEFT + _CROSSOVER_PX else (high + 8, "start")
        yield _text((side, _TOP + 17), told, "text halo label bold", anchor)


def _threshold(x: float, tokens: int) -> Iterator[str]:
    """Its name stands where the curves are not (times rise to the right), and under the crossover's."""
    yield _line((x, _TOP), (x, _BOTTOM), "chosen", dashes="8 4", width=2)
    side, anchor = (-8, "end") if x > WIDTH - _NAME_PX else (8, "start")
    y = _TOP + 42 if x < (_LEFT + _RIGHT) / 2 else _BOTTOM - 30
    for line, content in enumerate(("minCachedTokenDelta", f"{tokens:,}")):
        yield _text((x + side, y + 17 * line), content, "chosen-text halo label bold", anchor)


def _measured(plane: _Plane, rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        for kind, spread in ((Kind.RECOMPUTE, row.recompute), (Kind.PULL, row.pull)):
            if spread:
                yield from _whisker(plane, kind, row.prefix_tokens, spread)


def _whisker(plane: _Plane, kind: Kind, tokens: int, spread: Spread) -> Iterator[str]:
    x = plane.x.at(tokens)
    least, most, y = (plane.y.at(ms) for ms in (spread.least, spread.most, spread.median))
    yield _line((x, least), (x, most), kind, width=1.5)
    for end in (least, most):
        yield _line((x - _CAP_PX, end), (x + _CAP_PX, end), kind, width=1.5)
    if kind is Kind.PULL:
        yield f'<circle class="{kind}-fill halo" cx="{x:.1f}" cy="{y:.1f}" r="4.5" stroke-width="1.5"/>'
    else:
        yield (
            f'<rect class="{kind}-fill halo" x="{x - 4.2:.1f}" y="{y - 4.2:.1f}" width="8.4" height="8.4"'
            ' stroke-width="1.5"/>'
        )


def _legend(report: Report) -> Iterator[str]:
    """In one line below the subtitle, in words that need no other explanation."""
    yield f'<rect class="recompute-fill" x="{_LEFT}" y="69" width="10" height="10"/>'
    yield _text((_LEFT + 17, 78), "recompute", "text small")
    yield f'<circle class="pull-fill" cx="{_LEFT + 98}" cy="74" r="5.5"/>'
    yield _text((_LEFT + 110, 78), "pull", "text small")
    bands = "medians with the span from least to most, fitted curves with 95 % bands"
    yield _text((_LEFT + 150, 78), bands, "quiet small")


def _line(
    start: tuple[float, float], end: tuple[float, float], name: str, *, dashes: str = "", width: float = 1
) -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<line class="{name}" x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
        f' stroke-width="{width:g}"{dashed}/>'
    )


def _text(at: tuple[float, float], content: str, name: str, anchor: str = "start") -> str:
    place = f'x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}"'
    return f'<text class="{name}" {place}>{escape(content)}</text>'
