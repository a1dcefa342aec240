"""The results as markdown, made from the JSON document.

Rule: every figure stands beside its ratio to the floor of the same run, and beside its limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.bench import limits
from tests.bench.commands import FLOOR, SIDECAR, TRACED_10, TRACED_ALL, WORKERS_1, WORKERS_2
from tests.bench.document import View, is_first_byte

Rows = list[list[str]]
_TRACED = {"event": "SSE event, 128 streams, 5 ms apart", "small": "request, prompt of 2 KB"}
_AT_WORK = {
    "small": "requests of 2 KB",
    "pull400": "pulls of 400 KB",
    "event1000": "SSE events, 1,000 streams",
}


def markdown(document: Mapping[str, Any]) -> str:
    """The machine's facts, then the tables of what was measured."""
    view = View(document)
    parts = (_facts(document["machine"]), _main(view), _tracing(view), _workers(view), _left_out(document))
    return "\n\n".join(part for part in parts if part)


def complaints(document: Mapping[str, Any]) -> Iterator[str]:
    """One line per job and proxy with errors, and one when the machine had other work."""
    machine = document["machine"]
    if machine["load_average_before"] > machine["cores"] / 2:
        yield (
            f"load average {machine['load_average_before']:.1f} on {machine['cores']} cores before the run: "
            "other work disturbs every figure"
        )
    for job, row in document["figures"].items():
        for name, figures in row.items():
            if figures["errors"]:
                words = ", ".join(f"{count} x {what}" for what, count in figures["errors"].items())
                yield f"errors: {job} through {name}: {words}"


def _facts(machine: Mapping[str, Any]) -> str:
    return (
        f"Measured {machine['time'][:10]} at commit {machine['commit']} on {machine['cores']} cores "
        f"({machine['cpu']}), {machine['memory_gb']:g} GB, Linux {machine['kernel']}, "
        f"Python {machine['python']} (an object, a call and a look-up: {machine['call_ns']} ns); "
        f"load average before the run {machine['load_average_before']:.1f}. "
        "CPU time of the whole process tree; in brackets the ratio to the floor of the same run."
    )


def _main(view: View) -> str:
    columns: Sequence[str] = view.document["columns"]
    rows = [["", *columns, "limit of the sidecar"], [":---", *("---:" for _ in columns), ":---"]]
    for name, job in view.document["jobs"].items():
        rows += _job_rows(view, name, job)
    kinds: tuple[tuple[str, str, Callable[[str], float | None], str], ...] = (
        ("start", "start to first answer, s", view.start_s, ".2f"),
        (
            "idle_percent",
            "CPU idle, % of a core",
            lambda column: view.standing("idle_percent", column),
            ".2f",
        ),
        ("idle_mb", "memory idle, MB", lambda column: view.proxy(column, "idle_mb"), ".0f"),
        ("stream_kb", "memory per idle stream, KB", lambda column: view.standing("stream_kb", column), ".1f"),
        ("after_mb", "memory after the run, MB", lambda column: view.proxy(column, "after_mb"), ".0f"),
        (
            "growth_mb",
            "memory grown over 90,000 requests, MB",
            lambda column: view.growth_mb() if column == SIDECAR else None,
            ".1f",
        ),
    )
    for row, title, value, form in kinds:
        cells = [_number(value(column), form) for column in columns]
        if any(cells):
            rows.append([title, *cells, limits.of_row(row, view)])
    return _table(rows)


def _job_rows(view: View, name: str, job: Mapping[str, Any]) -> Rows:
    columns: Sequence[str] = view.document["columns"]
    if is_first_byte(job):
        percentiles = {"p50": "first_p50_ms", "p99": "first_p99_ms"}
        return [
            [f"{job['title']}, {p}, ms", *(_number(view.added_ms(name, c, kind), ".2f") for c in columns), ""]
            for p, kind in percentiles.items()
        ]
    cells = [_with_ratio(view.cpu_us(name, column), view.cpu_us(name, FLOOR)) for column in columns]
    return [[f"{job['title']}, µs", *cells, limits.of_row(name, view)]]


def _tracing(view: View) -> str:
    rows = [
        ["sidecar, tracing", "off, µs", "10 % sampled", "all sampled", "spans exported", "limit"],
        [":---", "---:", "---:", "---:", "---:", ":---"],
    ]
    for job, title in _TRACED.items():
        off = view.cpu_us(job, SIDECAR)
        cells = [_with_ratio(view.cpu_us(job, name), off) for name in (TRACED_10, TRACED_ALL)]
        if any(cells):
            spans = _number(view.spans(job, TRACED_ALL), ".1f") + " a request"
            limit = limits.of_row(f"traced {job}", view)
            rows.append([title, _number(off, ".1f"), *cells, spans, limit])
    return _table(rows) if len(rows) > 2 else ""


def _workers(view: View) -> str:
    both = (WORKERS_1, WORKERS_2)
    rows = [["sidecar, workers", "1", "2"], [":---", "---:", "---:"]]
    for job, title in _AT_WORK.items():
        for kind, what, form in (("per_second", "per second", ",.0f"), ("cpu_us", "µs each", ".1f")):
            cells = [_number(view.figure(job, name, kind), form) for name in both]
            if any(cells):
                rows.append([f"{title}, {what}", *cells])
    if len(rows) == 2:
        return ""
    rows.append(["memory idle, MB", *(_number(view.proxy(name, "idle_mb"), ".0f") for name in both)])
    return _table(rows)


def _left_out(document: Mapping[str, Any]) -> str:
    return "\n".join(f"Left out: {name} ({reason})." for name, reason in document["left_out"].items())


def _table(rows: Rows) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _with_ratio(value: float | None, floor: float | None) -> str:
    if value is None:
        return ""
    text = f"{value:.1f}" if value < 100 else f"{value:,.0f}"
    return text if not floor or value == floor else f"{text} ({value / floor:.2f})"
