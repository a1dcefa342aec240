"""The flags of `sidecar calibrate`.

Rule: a flag that is accepted does what it says; what cannot be is refused in one line that names the flag.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sidecar.calibrate.aim import P2P_PORT, VIAS
from sidecar.calibrate.crossover import DEFAULT_HEADROOM
from sidecar.calibrate.outcomes import MEANINGS
from sidecar.calibrate.plan import DEFAULT_LENGTHS
from sidecar.calibrate.values import COUNT, ENDPOINT, SOME, URL, header, headroom, kind, lengths, timeout
from sidecar.endpoint import Endpoint
from sidecar.parser import Parser
from sidecar.remote import Place, Trust
from sidecar.settings.durations import parse_duration

PROG = "sidecar calibrate"
DEFAULT_ROUNDS = 5
"""Five legs of a kind and length: their median ignores two slow ones."""
DEFAULT_TIMEOUT = "120s"
"""A prefill of 49,152 tokens of a large model on slow cards takes a minute."""
DEFAULT_LOAD_TOKENS = 2048
FILES = ("json", "csv", "svg", "epp")

_ABOUT = """\
Measures from which prefix length on a pod had better pull KV blocks from a peer than compute them again, and
recommends the endpoint picker's minCachedTokenDelta. For each length the source computes a fresh prompt and
the consumer is asked for it, in random order with and without being told to pull; every leg is verified by
both engines' own counters. All of it is HTTP. Use a pair that serves nobody else.

  sidecar calibrate --source=http://10.0.0.1:8000 --consumer=http://10.0.0.2:8000 --svg=crossover.svg
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """See the flags' help. source_p2p, source_endpoint: None for what follows from the source's URL."""

    source: Place
    consumer: Place
    via: str
    source_p2p: Endpoint | None
    source_endpoint: Endpoint | None
    model: str | None
    lengths: tuple[int, ...]
    rounds: int
    seed: int | None
    headroom: float
    load: int
    load_tokens: int
    dp_ranks: int
    timeout_s: float
    trust: Trust
    yes: bool
    files: Mapping[str, str]


def parsed(argv: Sequence[str]) -> Options:
    """The options. Raises SystemExit, with one line on standard error, or after --help."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.source == args.consumer:
        parser.error("--consumer: is the source itself; a pair is needed")
    trust = Trust(args.ca_file, args.insecure, dict(args.header))
    _check_trust(parser, trust, {args.source.scheme, args.consumer.scheme})
    files = {name: getattr(args, name) for name in FILES if getattr(args, name)}
    if list(files.values()).count("-") > 1:
        parser.error(f"--{', --'.join(files)}: only one of them can go to standard output")
    return Options(
        source=args.source,
        consumer=args.consumer,
        via=args.via,
        source_p2p=args.source_p2p,
        source_endpoint=args.source_endpoint,
        model=args.model,
        lengths=args.lengths,
        rounds=args.rounds,
        seed=args.seed,
        headroom=args.headroom,
        load=args.load,
        load_tokens=args.load_tokens,
        dp_ranks=args.dp_ranks,
        timeout_s=args.timeout,
        trust=trust,
        yes=args.yes,
        files=files,
    )


def _check_trust(parser: argparse.ArgumentParser, trust: Trust, schemes: set[str]) -> None:
    name = "--ca-file" if trust.ca_file else "--insecure" if trust.insecure else None
    if name and "https" not in schemes:
        parser.error(f"{name}: neither URL is https")
    if trust.ca_file and trust.insecure:
        parser.error("--ca-file: has no effect with --insecure")
    try:
        trust.verify()
    except OSError as error:
        parser.error(f"--ca-file: {trust.ca_file}: {error.strerror or error}")


def _parser() -> argparse.ArgumentParser:
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
    add("--source", type=URL, required=True, metavar="URL", help="computes prompts first; engine or sidecar")
    add("--consumer", type=URL, required=True, metavar="URL", help="is timed; engine or sidecar")
    add(
        "--via",
        choices=VIAS,
        default="auto",
        help="the consumer is an engine, told to pull in the body, or our sidecar, by header (default: auto)",
    )
    add(
        "--source-p2p",
        type=ENDPOINT,
        metavar="HOST:PORT",
        help=f"the source's P2P endpoint, for an engine (default: the host of --source, port {P2P_PORT})",
    )
    add(
        "--source-endpoint",
        type=ENDPOINT,
        metavar="HOST:PORT",
        help="the source as the endpoint picker names it, for a sidecar (default: that of --source)",
    )
    add("--model", metavar="NAME", help="model of the requests (default: the first that the source serves)")
    add(
        "--dp-ranks",
        type=COUNT,
        default=1,
        metavar="N",
        help="legs take turns on N data-parallel ranks: rank r has the ports of both URLs, and of the P2P"
        " endpoint, plus r (default: 1)",
    )


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what is measured").add_argument
    add(
        "--lengths",
        type=kind(lengths, "a list of token counts, such as 2048,8192"),
        default=DEFAULT_LENGTHS,
        metavar="N,N,...",
        help="prefix lengths in tokens, rounded to blocks and cut to the model's limit"
        f" (default: {','.join(map(str, DEFAULT_LENGTHS))})",
    )
    add(
        "--rounds",
        type=COUNT,
        default=DEFAULT_ROUNDS,
        metavar="N",
        help=f"legs of each kind and length (default: {DEFAULT_ROUNDS})",
    )
    add("--seed", type=SOME, metavar="N", help="of the random order of legs (default: another each time)")
    add(
        "--headroom",
        type=kind(headroom, "a factor from 1 to 100"),
        default=DEFAULT_HEADROOM,
        metavar="F",
        help="the threshold is this many times the length from which on pulls are proven faster"
        f" (default: {DEFAULT_HEADROOM})",
    )
    add(
        "--load",
        type=SOME,
        default=0,
        metavar="N",
        help="background requests at a time on each engine: contention moves the crossover (default: 0)",
    )
    add(
        "--load-tokens",
        type=COUNT,
        default=DEFAULT_LOAD_TOKENS,
        metavar="N",
        help=f"prompt tokens of a background request (default: {DEFAULT_LOAD_TOKENS})",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("output").add_argument
    add(
        "--json", metavar="FILE", help="everything, each leg too; - for standard output, in place of the text"
    )
    add("--csv", metavar="FILE", help="the table, one line per length; - as above")
    add("--svg", metavar="FILE", help="the picture: both curves, bands, crossover, threshold; - as above")
    add("--epp", metavar="FILE", help="the plugin for the endpoint picker's configuration; - as above")
    add("--yes", action="store_true", help="do not ask before it starts")


def _add_connection(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("connections").add_argument
    add("--ca-file", type=Path, metavar="FILE", help="authorities whose certificates are accepted")
    add("-k", "--insecure", action="store_true", help="accept any certificate")
    add(
        "--header",
        type=kind(header, "'name: value'"),
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="sent with every request, such as 'Authorization: Bearer ...'",
    )
    add(
        "--timeout",
        type=kind(timeout, "a duration, such as 120s or 2m"),
        default=parse_duration(DEFAULT_TIMEOUT),
        metavar="DURATION",
        help=f"of one request (default: {DEFAULT_TIMEOUT})",
    )
