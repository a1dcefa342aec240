"""`sidecar doctor`: examines peers and says what makes pulls between them move nothing.

Rule: prints; what is found is decided elsewhere, and nothing ends in a traceback.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from sidecar.doctor.diagnosis import Diagnosis
from sidecar.doctor.document import document
from sidecar.doctor.findings import EXIT_FINE, EXIT_WRONG_USAGE
from sidecar.doctor.listing import pool_urls
from sidecar.doctor.options import Options, parse
from sidecar.doctor.order import Order
from sidecar.doctor.paint import coloured, plain
from sidecar.doctor.peers import named, overridden, placed
from sidecar.doctor.report import report
from sidecar.doctor.rounds import diagnose

# The shell's status of a program that Ctrl-C ended.
_INTERRUPTED = 130
# A program's own fault (sysexits.h, EX_SOFTWARE).
_BROKEN = 70
_CLEAR_LINE = "\r\x1b[K"


def main(argv: Sequence[str]) -> int:
    """Run it; the status is that of findings.exit_code, 2 for wrong usage, 70 for a fault of its own, 130
    when interrupted.
    """
    codes: list[int] = []
    try:
        options = parse(argv)
        asyncio.run(_run(options, codes))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_WRONG_USAGE
    except KeyboardInterrupt:
        # The way to end --watch; what was found last is what it is worth.
        return _interrupted(codes)
    except (ValueError, OSError) as error:
        print(f"sidecar doctor: {error}", file=sys.stderr)
        return EXIT_WRONG_USAGE
    except Exception as error:  # of ours, or an answer of a kind that nobody thought of
        print(f"sidecar doctor: a fault of its own: {type(error).__name__}: {error}", file=sys.stderr)
        return _BROKEN
    return codes[-1] if codes else EXIT_FINE


def _interrupted(codes: Sequence[int]) -> int:
    print(file=sys.stderr)
    return codes[-1] if codes else _INTERRUPTED


async def _run(options: Options, codes: list[int]) -> None:
    """Once, or until it is interrupted; `codes` is given the status of each round."""
    while True:
        order = await _order(options)
        diagnosis = await diagnose(order, _tell)
        _tell("")
        if not _printed(_text(options, diagnosis)):
            return
        codes.append(diagnosis.exit_code)
        if not options.watch:
            return
        await asyncio.sleep(options.interval_s)


async def _order(options: Options) -> Order:
    """Anew for each round, since a pool changes. Raises ValueError."""
    urls, flag = options.peers, "--peers"
    if options.pool:
        flag = "--inference-pool"
        urls = await pool_urls(options.pool, options.pool_group, options.scheme)
    peers = named(placed(urls, flag), options.p2p_port, options.metrics_port)
    if len(peers) < 2:
        raise ValueError(f"{flag}: {len(peers)} peer, and it takes two to pull")
    return Order(
        overridden(peers, options.p2p, options.metrics),
        options.trust,
        options.prompt_tokens,
        options.most_pairs,
        options.timeout_s,
        options.verify,
    )


def _text(options: Options, diagnosis: Diagnosis) -> str:
    if options.as_json:
        return json.dumps(document(diagnosis), indent=None if options.watch else 2, ensure_ascii=False)
    paint = coloured if colours(sys.stdout) else plain
    lines = "\n".join(report(diagnosis, paint))
    if not options.watch:
        return lines
    return f"{datetime.now().astimezone().isoformat(' ', 'seconds')}\n{lines}\n"


class Stream(Protocol):
    """Where text goes."""

    def isatty(self) -> bool:
        """Whether somebody looks at it as it comes."""


def colours(stream: Stream) -> bool:
    """Whether to print in colours: on a terminal, unless NO_COLOR says otherwise (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _printed(text: str) -> bool:
    """Print what may be long; False once the reader has seen enough (`| head`), which is no failure."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the exit's flush is quiet
        return False
    return True


def _tell(what: str) -> None:
    """What is being done, on one line of a terminal, and on nothing else."""
    if sys.stderr.isatty():
        print(_CLEAR_LINE + what, end="", file=sys.stderr, flush=True)
