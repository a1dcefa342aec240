"""The report for programs: JSON (everything), CSV (the table), and a snippet of the endpoint picker's YAML.

Rule: pure. Names and units of JSON and CSV are promised: fields are added, never given another meaning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sidecar.calibrate.crossover import Shape
from sidecar.calibrate.curves import Curve
from sidecar.calibrate.outcomes import MEANINGS
from sidecar.calibrate.report import Report
from sidecar.calibrate.summary import Row, Spread
from sidecar.calibrate.verdicts import Measured

_CSV = (
    "prefix_tokens",
    "recompute_ms",
    "recompute_least_ms",
    "recompute_most_ms",
    "recompute_legs",
    "pull_ms",
    "pull_least_ms",
    "pull_most_ms",
    "pull_legs",
    "delta_ms",
    "moved_bytes",
    "legs_set_aside",
)


def as_json(report: Report) -> str:
    """Everything, the single legs too."""
    setting = report.setting
    value: dict[str, Any] = {
        "outcome": report.ended.name.lower(),
        "exit_code": int(report.ended),
        "recommended_min_cached_token_delta": report.recommended,
        "crossover": asdict(report.crossover) if report.crossover else None,
        "figures": asdict(report.figures),
        "curves": {"recompute": _curve(report.recompute), "pull": _curve(report.pull)},
        "rows": [_row(row) for row in report.rows],
        "setting": {
            "source": setting.source,
            "consumer": setting.consumer,
            "pulls_from": setting.pair.target,
            "source_facts": _facts(setting.pair.source),
            "consumer_facts": _facts(setting.pair.consumer),
            "model": setting.model,
            "block_tokens": setting.block_tokens,
            "legs": setting.legs,
            "rounds": setting.rounds,
            "seed": setting.seed,
            "headroom": setting.headroom,
            "load": setting.load,
            "load_answered": setting.load_answered,
            "load_failed": setting.load_failed,
            "dp_ranks": setting.ranks,
            "token_ids": setting.token_ids,
        },
        "warm_pulls": [_leg(one) for one in report.warm],
        "legs": [_leg(one) for one in report.measured],
        "likely_causes": list(report.causes),
        "stopped": report.gone,
    }
    return json.dumps(value, indent=2) + "\n"


def _facts(facts: Any) -> dict[str, Any]:
    return {**asdict(facts), "cache": dict(facts.cache)}


def _curve(curve: Curve | None) -> dict[str, Any] | None:
    """coefficients: ms, ms per thousand tokens, per thousand squared."""
    return asdict(curve) if curve else None


def _row(row: Row) -> dict[str, Any]:
    return {**asdict(row), "delta_ms": row.delta_ms}


def _leg(one: Measured) -> dict[str, Any]:
    return {
        "round": one.leg.round,
        "kind": one.leg.kind.value,
        "rank": one.leg.rank,
        "asked_prefix_tokens": one.leg.prefix_tokens,
        "prefix_tokens": one.prefix_tokens,
        "ttft_ms": one.ttft_ms,
        "seed_ttft_ms": one.seed_ms,
        "verdict": one.verdict.value,
        "reason": one.reason or None,
        **asdict(one.rise),
    }


def as_csv(report: Report) -> str:
    """The table, one line per length; times in ms, empty where there is none."""
    lines: list[tuple[str, ...]] = [_CSV]
    for row in report.rows:
        moved_bytes = None if row.moved_bytes is None else round(row.moved_bytes)
        cells = (*_times(row.recompute), *_times(row.pull), row.delta_ms, moved_bytes)
        lines.append((str(row.prefix_tokens), *map(_cell, cells), str(row.aside)))
    return "".join(f"{','.join(line)}\n" for line in lines)


def _times(spread: Spread | None) -> Sequence[float | None]:
    return (spread.median, spread.least, spread.most, spread.count) if spread else (None,) * 4


def _cell(value: float | None) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"


def as_epp(report: Report) -> str:
    """The plugin of the endpoint picker's configuration, with the reason for its threshold above it."""
    lines = [f"# {line}" for line in _reasons(report)]
    if report.recommended is None:
        return "\n".join([*lines, f"# no threshold: {MEANINGS[report.ended]}"]) + "\n"
    plugin = [line.format(tokens=report.recommended) for line in _PLUGIN]
    return "\n".join([*lines, *plugin]) + "\n"


# As in the overlays under deploy/; the producer is the plugin that knows which pod holds which prefix.
_PLUGIN = (
    "plugins:",
    "  - type: p2p-source-producer",
    "    parameters:",
    "      prefixMatchInfoProducerName: precise-prefix-cache-producer",
    "      minCachedTokenDelta: {tokens}",
)


def _reasons(report: Report) -> Sequence[str]:
    setting, found = report.setting, report.crossover
    told = [f"sidecar calibrate, {setting.model}: {setting.consumer} pulls from {setting.source}"]
    if found is None or report.recommended is None:
        return told
    if found.shape is Shape.PULLS_WIN:
        return [*told, f"pulls were faster at every length from {found.shortest} to {found.longest} tokens"]
    at = f"{found.tokens:.0f}" if found.tokens else f"under {found.shortest}"
    crossing = f"crossover {at} tokens, certain from {found.high:.0f} on"
    return [*told, f"{crossing}, x headroom {setting.headroom:g}"]


OUTPUTS: Mapping[str, Any] = {"json": as_json, "csv": as_csv, "epp": as_epp}
