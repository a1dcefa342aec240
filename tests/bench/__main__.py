"""`python -m tests.bench`: what relaying costs the sidecar, beside a bare relay and a naive proxy.

Rule: starts everything itself on the loopback interface, prints one table, and leaves nothing running.
Exit codes: 0, 1 when an answer was wrong or something did not start, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from tests.bench import table
from tests.bench.jobs import JOBS, Job
from tests.bench.measure import Results, measure, warm_up
from tests.bench.processes import rss_mb
from tests.bench.proxies import COMMANDS, FLOOR, HANDOFF, NAIVE, PEER, SIDECAR, Bench, bench

_SHOWN = (FLOOR, SIDECAR, NAIVE)
_EPILOG = """environment:
  PEER='cmd with {port} {engine}'   one more proxy; {p2p} is the port of the source's P2P tier
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; see --help."""
    options = _parser().parse_args(argv)
    jobs = [
        job for job in JOBS if (job.name in options.only if options.only else options.full or not job.full)
    ]
    # 1,000 streams are 2,000 sockets in a proxy; children inherit the limit.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as logs, bench(Path(logs)) as running:
            _start_all(running, jobs, options.proxies)
            warm_up(running, jobs[0])
            results = measure(running, jobs, options.rounds, options.seconds)
            _report(running, jobs, results, options.json)
    except KeyboardInterrupt:
        return 130
    except RuntimeError as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    return 1 if results.errors else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="CPU time of the sidecar per event and request, beside a bare relay and a naive proxy.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [job.name for job in JOBS]
    parser.add_argument("--seconds", type=float, default=0.8, help="length of each run (default 0.8)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often each is run; medians count (default 3)"
    )
    parser.add_argument(
        "--only", type=_names(names), default=[], metavar="JOB,...", help=f"of {', '.join(names)}"
    )
    parser.add_argument(
        "--proxies",
        type=_names(_SHOWN),
        default=list(_SHOWN),
        metavar="PROXY,...",
        help=f"of {', '.join(_SHOWN)}",
    )
    parser.add_argument("--full", action="store_true", help="the long jobs too: 1,000 streams, 20 ms apart")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every figure and the machine's facts"
    )
    return parser


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """An argparse type: names of a list, by comma."""

    def names(text: str) -> list[str]:
        given = text.split(",")
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
        return given

    return names


def _start_all(running: Bench, jobs: Sequence[Job], shown: Sequence[str]) -> None:
    """Start the proxies one by one, so that none waits for another's imports."""
    for name in shown:
        running.start(name, COMMANDS[name])
    if SIDECAR in shown and any(job.handoff for job in jobs):
        running.start(HANDOFF, COMMANDS[HANDOFF])
    if peer := os.environ.get("PEER"):
        running.start(PEER, peer)


def _report(running: Bench, jobs: Sequence[Job], results: Results, path: Path | None) -> None:
    after_mb = {name: rss_mb(proxy.pid) for name, proxy in running.proxies.items()}
    report = table.Report(jobs, results, running.proxies, after_mb)
    sys.stdout.write(report.markdown() + "\n")
    for line in report.complaints():
        sys.stderr.write(line + "\n")
    if path:
        path.write_text(json.dumps(report.document(), indent=1) + "\n")


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Both signals end the benchmark through every `finally`, also where a shell made SIGINT ignored."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
