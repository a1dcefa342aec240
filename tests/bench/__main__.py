"""`python -m tests.bench`: what relaying costs the sidecar, beside a bare relay and a naive proxy.

Rule: starts everything itself on the loopback interface, prints tables, and leaves nothing running.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from tests.bench import kept, limits, options, router, table
from tests.bench.commands import (
    FLOOR,
    HANDOFF,
    ROUTER,
    SHOWN,
    SIDECAR,
    VARIANTS,
    Command,
    commands,
    named_by_user,
    refused,
)
from tests.bench.document import Measured, View, facts
from tests.bench.jobs import JOBS, Job
from tests.bench.lasting import last
from tests.bench.measure import measure, warm_up
from tests.bench.processes import rss_mb
from tests.bench.proxies import Bench, bench
from tests.bench.standing import Standing, idle, starts, streams

# How long nothing is done to see what that costs: the guard looks after its sources every 10 s.
_IDLE_S, _QUICK_IDLE_S = 12.0, 4.0
_STARTS, _QUICK_STARTS = 5, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see --help."""
    asked = options.parser().parse_args(argv)
    # 1,000 streams are 2,000 sockets in a proxy; children inherit the limit.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as logs, bench(Path(logs)) as running:
            document = _measured(running, asked).document()
    except KeyboardInterrupt:
        return 130
    except RuntimeError as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    _report(document, asked)
    if document["errors"]:
        return 1
    return 3 if asked.enforce and any(limits.missed(View(document))) else 0


def _measured(running: Bench, asked: argparse.Namespace) -> Measured:
    machine, jobs, standing = facts(), _jobs(asked), Standing()
    parts = asked.only or [part for part in options.PARTS if part != options.LASTING or asked.long]
    if asked.vllm_router:
        running.router = router.install()
    columns = _columns(asked)
    left_out = refused([name for name in VARIANTS if name in asked.proxies])
    _start_all(running, jobs, columns, [name for name in asked.proxies if name not in left_out])
    warm_up(running, JOBS[0])
    if options.IDLE in parts:
        idle(running, columns, _QUICK_IDLE_S if asked.quick else _IDLE_S, standing)
    rounds, seconds = (
        asked.rounds or (1 if asked.quick else 3),
        asked.seconds or (0.4 if asked.quick else 0.8),
    )
    results = measure(running, jobs, rounds, seconds)
    after_mb = {name: rss_mb(proxy.pid) for name, proxy in running.proxies.items()}
    if options.STARTS in parts:
        starts(running, columns.items(), _QUICK_STARTS if asked.quick else _STARTS, standing)
    if options.STREAMS in parts:
        streams(running, columns.items(), standing)
    lasting = None
    if options.LASTING in parts and SIDECAR in columns:
        lasting = last(running, SIDECAR, columns[SIDECAR])
    return Measured(
        machine, list(columns), jobs, results, running.proxies, after_mb, standing, lasting, left_out
    )


def _jobs(asked: argparse.Namespace) -> list[Job]:
    if asked.only:
        return [job for job in JOBS if job.name in asked.only]
    return [job for job in JOBS if job.quick or not asked.quick]


def _columns(asked: argparse.Namespace) -> dict[str, Command]:
    """The table's columns, in its order."""
    known = commands()
    columns = {name: known[name] for name in SHOWN if name in asked.proxies}
    if asked.vllm_router:
        columns[ROUTER] = known[ROUTER]
    return {**columns, **named_by_user()}


def _start_all(
    running: Bench, jobs: Sequence[Job], columns: Mapping[str, Command], asked: Sequence[str]
) -> None:
    """Start the proxies one by one, so that none waits for another's imports; only variants of the jobs."""
    known = commands()
    for name, command in columns.items():
        running.start(name, command)
    for name in (FLOOR, SIDECAR):
        if name in columns and any(job.handoff for job in jobs):
            running.start(HANDOFF[name], known[HANDOFF[name]])
    for name in VARIANTS:
        if name in asked and any(name in job.variants for job in jobs):
            running.start(name, known[name])


def _report(document: dict[str, Any], asked: argparse.Namespace) -> None:
    sys.stdout.write(table.markdown(document) + "\n")
    for line in table.complaints(document):
        sys.stderr.write(line + "\n")
    for line in limits.missed(View(document)):
        sys.stderr.write(f"limit missed: {line}\n")
    if asked.json:
        asked.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    if asked.readme and not document["errors"]:
        kept.keep(document)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Both signals end the benchmark through every `finally`, also where a shell made SIGINT ignored."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
