"""`sidecar doctor`: examines peers and says what makes pulls between them move nothing.

Rule: prints; what is found is decided elsewhere, and nothing ends in a traceback.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from sidecar import streams
from sidecar.doctor.diagnosis import Diagnosis
from sidecar.doctor.document import document
from sidecar.doctor.findings import EXIT_FINE, EXIT_WRONG_USAGE
from sidecar.doctor.flags import PROG
from sidecar.doctor.listing import pool_places
from sidecar.doctor.options import Options, parse
from sidecar.doctor.order import Order
from sidecar.doctor.paint import coloured, plain
from sidecar.doctor.peers import BadFlag, named, overridden, placed
from sidecar.doctor.report import report
from sidecar.doctor.rounds import diagnose
from sidecar.interrupts import INTERRUPTED, cancelling

# A program's own fault (sysexits.h, EX_SOFTWARE).
_BROKEN = 70
# Besides SIGINT, which asyncio heeds.
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_CLEAR_LINE = "\r\x1b[K"


def main(argv: Sequence[str]) -> int:
    """Run it; the status is that of findings.exit_code, 2 for wrong usage, 70 for a fault of its own, 130
    when a signal ends it before the first round has ended, 74 as `streams` says.
    """
    codes: list[int] = []
    try:
        asyncio.run(_run(parse(argv), codes))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_WRONG_USAGE
    except (KeyboardInterrupt, asyncio.CancelledError):
        # The way to end --watch; what was found last is what it is worth.
        _tell("")
        return codes[-1] if codes else INTERRUPTED
    except BadFlag as refused:
        print(f"{PROG}: {refused}", file=sys.stderr)
        return EXIT_WRONG_USAGE
    except Exception as error:  # of ours, or an answer of a kind that nobody thought of
        print(f"{PROG}: a fault of its own: {type(error).__name__}: {error}", file=sys.stderr)
        return _BROKEN
    return codes[-1] if codes else EXIT_FINE


async def _run(options: Options, codes: list[int]) -> None:
    """Once, or until it is interrupted; `codes` is given the status of each round. Raises BadFlag."""
    running = asyncio.current_task()
    assert running is not None
    cancelling(running, _SIGNALS)
    going = True
    while going:
        try:
            order = await _order(options)
        except BadFlag as refused:
            if not codes:
                raise
            print(f"{PROG}: {refused}", file=sys.stderr)  # for now: pods come and go, and so does the API
        else:
            going = await _round(options, order, codes) and options.watch
        if going:
            await asyncio.sleep(options.interval_s)


async def _round(options: Options, order: Order, codes: list[int]) -> bool:
    """One diagnosis, printed; False once the reader has seen enough (`| head`), which is no failure."""
    diagnosis = await diagnose(order, _tell)
    _tell("")
    codes.append(diagnosis.exit_code)
    return streams.show(_text(options, diagnosis))


async def _order(options: Options) -> Order:
    """Anew for each round, since a pool changes. Raises BadFlag."""
    places, flag = options.peers, "--peers"
    if options.pool:
        flag = "--inference-pool"
        places = await pool_places(options.pool, options.pool_group, options.scheme)
    peers = named(placed(places, flag), options.p2p_port, options.metrics_port)
    peers = overridden(peers, options.p2p, options.metrics)
    if options.certificates and not any(peer.has_certificate for peer in peers):
        raise BadFlag(f"{options.certificates}: does nothing: no peer's URL is https")
    return Order(
        peers,
        options.trust,
        options.prompt_tokens,
        options.most_pairs,
        options.timeout_s,
        options.verify,
    )


def _text(options: Options, diagnosis: Diagnosis) -> str:
    if options.as_json:
        # In ASCII, which every encoding of standard output has: what stands for others is no JSON.
        return json.dumps(document(diagnosis), indent=None if options.watch else 2)
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


def _tell(what: str) -> None:
    """What is being done, on one line of a terminal, and on nothing else."""
    if sys.stderr.isatty():
        print(_CLEAR_LINE + what, end="", file=sys.stderr, flush=True)
