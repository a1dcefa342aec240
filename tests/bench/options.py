"""The command line of the benchmark.

Rule: defaults are those of the figures that are published; everything else is for somebody at work.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench.commands import SHOWN, VARIANTS
from tests.bench.jobs import JOBS

# Besides the jobs: what standing.py and lasting.py measure.
STARTS, STREAMS, IDLE, LASTING = PARTS = ("starts", "streams", "idle", "lasting")

_EPILOG = """environment:
  PEER='cmd with {port} {engine}'   one more proxy; {p2p} is the port of the source's P2P tier
  VLLM_ROUTER_VENV                  where --vllm-router installs it
exit codes: 0; 1 a wrong answer, or something did not start; 3 a limit missed, with --enforce; 130 Ctrl-C
"""


def parser() -> argparse.ArgumentParser:
    """See --help."""
    made = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="CPU time and memory of the sidecar, beside a bare relay and a naive proxy.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    quick = made.add_argument_group("how much")
    quick.add_argument("--quick", action="store_true", help="the main rows, one short round (a minute)")
    quick.add_argument("--seconds", type=float, help="length of each run (default 0.8; quick 0.4)")
    quick.add_argument("--rounds", type=int, help="how often each is run; medians count (default 3; quick 1)")
    names = [*(job.name for job in JOBS), *PARTS]
    quick.add_argument(
        "--only", type=_names(names), default=[], metavar="JOB,...", help=f"of {', '.join(names)}"
    )
    shown = [*SHOWN, *VARIANTS]
    quick.add_argument(
        "--proxies", type=_names(shown), default=shown, metavar="PROXY,...", help=f"of {', '.join(shown)}"
    )
    quick.add_argument("--long", action="store_true", help="also memory over 100,000 requests (a minute)")
    quick.add_argument(
        "--vllm-router",
        action="store_true",
        help="also vllm-router; installs it once, in its own environment",
    )
    said = made.add_argument_group("what to do with it")
    said.add_argument("--json", type=Path, metavar="FILE", help="write every figure and the machine's facts")
    said.add_argument("--readme", action="store_true", help="keep the figures and renew README's table")
    said.add_argument("--enforce", action="store_true", help="exit with 3 when a limit is missed")
    return made


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """An argparse type: names of a list, by comma."""

    def names(text: str) -> list[str]:
        given = text.split(",")
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
        return given

    return names
