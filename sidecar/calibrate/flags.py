"""The command line of `sidecar calibrate`: its flags, their limits and their help.

Rule: parses single flags only; every limit is told in the help and in the refusal.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from sidecar.calibrate.aim import P2P_PORT, VIAS
from sidecar.calibrate.crossover import DEFAULT_HEADROOM
from sidecar.calibrate.outcomes import MEANINGS
from sidecar.calibrate.plan import DEFAULT_LENGTHS
from sidecar.parser import Parser
from sidecar.remote import values
from sidecar.remote.facts import QUESTION_S
from sidecar.settings.durations import parse_duration

PROG = "sidecar calibrate"
DEFAULT_ROUNDS = 5
"""Five legs of a kind and length: their median ignores two slow ones."""
DEFAULT_TIMEOUT = "120s"
"""A prefill of 49,152 tokens of a large model on slow cards takes a minute."""
DEFAULT_LOAD_TOKENS = 2048
_MOST_TOKENS = 10_000_000
"""Of one prompt: more than any model's context."""
_MOST_LENGTHS = 64
"""A table that can still be read."""
_MOST_ROUNDS = 1000
"""Bands are as narrow as they get long before."""
_MOST_LOAD = 1024
"""Each is a connection here, and a place in the engine's batch."""
_MOST_RANKS = 1024
"""Of one model, on the largest clusters."""
_MOST_SEED = 10_000_000
_MOST_HEADROOM = 100

_ABOUT = """\
Measures from which prefix length on a pod had better pull KV blocks from a peer than compute them again, and
recommends the endpoint picker's minCachedTokenDelta. For each length the source computes a fresh prompt and
the consumer is asked for it, in random order with and without being told to pull; every leg is verified by
both engines' own counters. All of it is HTTP. Use a pair that serves nobody else.

  sidecar calibrate --source=http://10.0.0.1:8000 --consumer=http://10.0.0.2:8000 --svg=crossover.svg
"""


def command_line() -> argparse.ArgumentParser:
    """What reads the flags one by one."""
    codes = "\n".join(f"  {int(code):<4} {meaning}" for code, meaning in MEANINGS.items())
    parser = Parser(
        prog=PROG,
        usage=f"{PROG} --source=URL --consumer=URL [--FLAG=VALUE ...]",
        description=_ABOUT,
        epilog=f"exit codes:\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for add in (_add_pair, _add_measuring, _add_output, _add_connection):
        add(parser)
    return parser


def _add_pair(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the pair").add_argument
    url = values.url
    add("--source", type=url, required=True, metavar="URL", help="computes prompts first; engine or sidecar")
    add("--consumer", type=url, required=True, metavar="URL", help="is timed; engine or sidecar")
    add(
        "--via",
        choices=VIAS,
        default="auto",
        help="the consumer is an engine, told to pull in the body, or our sidecar, by header (default: auto)",
    )
    add(
        "--source-p2p",
        type=values.endpoint,
        metavar="HOST:PORT",
        help=f"the source's P2P endpoint, for an engine (default: the host of --source, port {P2P_PORT})",
    )
    add(
        "--source-endpoint",
        type=values.endpoint,
        metavar="HOST:PORT",
        help="the source as the endpoint picker names it, for a sidecar (default: that of --source)",
    )
    add(
        "--model",
        type=values.name,
        metavar="NAME",
        help="model of the requests (default: the first that the source serves)",
    )
    add(
        "--dp-ranks",
        type=values.whole(1, _MOST_RANKS),
        default=1,
        metavar="N",
        help="legs take turns on N data-parallel ranks: rank r has the ports of both URLs, and of the P2P"
        f" endpoint, plus r (1 to {_MOST_RANKS:,}; default: 1)",
    )


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    add: Callable[..., object] = parser.add_argument_group("what is measured").add_argument
    add(
        "--lengths",
        type=values.kind(
            _lengths, f"a list of up to {_MOST_LENGTHS} token counts from 1 to {_MOST_TOKENS:,}"
        ),
        default=DEFAULT_LENGTHS,
        metavar="N,N,...",
        help="prefix lengths in tokens, rounded to blocks and cut to the model's limit; 2 to"
        f" {_MOST_LENGTHS}, each of 1 to {_MOST_TOKENS:,} (default: {','.join(map(str, DEFAULT_LENGTHS))})",
    )
    add(
        "--rounds",
        type=values.whole(1, _MOST_ROUNDS),
        default=DEFAULT_ROUNDS,
        metavar="N",
        help=f"legs of each kind and length, at least 2 where there are two lengths"
        f" (1 to {_MOST_ROUNDS:,}; default: {DEFAULT_ROUNDS})",
    )
    add(
        "--seed",
        type=values.whole(0, _MOST_SEED),
        metavar="N",
        help=f"of the random order of legs (0 to {_MOST_SEED:,}; default: another each time)",
    )
    add(
        "--headroom",
        type=values.kind(_headroom, f"a factor from 1 to {_MOST_HEADROOM}"),
        default=DEFAULT_HEADROOM,
        metavar="F",
        help="the threshold is this many times the length from which on pulls are proven faster"
        f" (1 to {_MOST_HEADROOM}; default: {DEFAULT_HEADROOM})",
    )
    _add_load(add)


def _add_load(add: Callable[..., object]) -> None:
    add(
        "--load",
        type=values.whole(0, _MOST_LOAD),
        default=0,
        metavar="N",
        help="background requests at a time on each engine: contention moves the crossover"
        f" (up to {_MOST_LOAD:,}; default: 0)",
    )
    add(
        "--load-tokens",
        type=values.whole(1, _MOST_TOKENS),
        default=DEFAULT_LOAD_TOKENS,
        metavar="N",
        help=f"prompt tokens of a background request (1 to {_MOST_TOKENS:,}; default: {DEFAULT_LOAD_TOKENS})",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    add: Callable[..., object] = parser.add_argument_group("output").add_argument
    for flag, told in _FILES.items():
        add(f"--{flag}", type=values.filename, metavar="FILE", help=told)
    add("--yes", action="store_true", help="do not ask before it starts")


def _add_connection(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("connections").add_argument
    add("--ca-file", type=values.filename, metavar="FILE", help="authorities whose certificates are accepted")
    add("-k", "--insecure", action="store_true", help="accept any certificate")
    add(
        "--header",
        type=values.header,
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="sent with every request, such as 'Authorization: Bearer ...'",
    )
    add(
        "--timeout",
        type=values.duration,
        default=parse_duration(DEFAULT_TIMEOUT),
        metavar="DURATION",
        help=f"of one request, up to 24h; questions to an engine about itself, its counters too, have no more"
        f" than {QUESTION_S:g} s of it (default: {DEFAULT_TIMEOUT})",
    )


_FILES = {
    "json": "everything, each leg too; - for standard output, in place of the text",
    "csv": "the table, one line per length; - as above",
    "svg": "the picture: both curves, bands, crossover, threshold; - as above",
    "epp": "the plugin for the endpoint picker's configuration; - as above",
}
FILES = tuple(_FILES)
"""The outputs that can be written to files, by the names of their flags."""


def _lengths(text: str) -> tuple[int, ...]:
    """Raises ValueError."""
    items = text.split(",")
    if len(items) > _MOST_LENGTHS:
        raise ValueError(text)
    return tuple(values.number(item.strip(), 1, _MOST_TOKENS) for item in items)


def _headroom(text: str) -> float:
    """Raises ValueError."""
    value = float(text)
    if not 1 <= value <= _MOST_HEADROOM:
        raise ValueError(text)
    return value
