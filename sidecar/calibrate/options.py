"""What was asked of `sidecar calibrate`.

Rule: a flag that is accepted does what it says; what cannot be is refused in one line that names the flag.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sidecar.calibrate.aim import P2P_PORT
from sidecar.calibrate.flags import FILES, command_line
from sidecar.calibrate.plan import NoLength, check_enough
from sidecar.endpoint import Endpoint
from sidecar.remote import Place, Trust, values
from sidecar.remote.place import WIDEST_PORT


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """See the flags' help. source_p2p, source_endpoint: None for what follows from the source's URL.

    files: the places of outputs, by the names of their flags.
    """

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
    parser = command_line()
    args = parser.parse_args(argv)
    if args.source == args.consumer:
        parser.error("--consumer: is the source itself; a pair is needed")
    _check_ranks(parser, args)
    try:
        check_enough(sorted(set(args.lengths)), args.rounds)
    except NoLength as error:
        parser.error(str(error))
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
        trust=_trust(parser, args),
        yes=args.yes,
        files=files,
    )


def _check_ranks(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Every rank has ports of its own."""
    for named, port in _ports(args):
        if port + args.dp_ranks - 1 > WIDEST_PORT:
            parser.error(
                f"--dp-ranks: {args.dp_ranks:,} ranks from port {port} of {named} on go beyond {WIDEST_PORT}"
            )
    source, consumer = args.source.endpoint, args.consumer.endpoint
    if source.host == consumer.host and 0 < abs(source.port - consumer.port) < args.dp_ranks:
        parser.error(
            f"--dp-ranks: {args.dp_ranks:,} ranks of --source and --consumer, counted up from ports"
            f" {source.port} and {consumer.port} of one host, meet each other"
        )


def _ports(args: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """What ranks are counted up from, named by the flag; the P2P port of rank 0 as well."""
    yield "--source", args.source.endpoint.port
    yield "--consumer", args.consumer.endpoint.port
    if args.source_endpoint:
        yield "--source-endpoint", args.source_endpoint.port
    yield "--source-p2p", args.source_p2p.port if args.source_p2p else P2P_PORT


def _trust(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Trust:
    if args.ca_file and args.insecure:
        parser.error("--ca-file: has no effect with --insecure")
    flag = "--ca-file" if args.ca_file else "--insecure" if args.insecure else None
    if flag and "https" not in (args.source.scheme, args.consumer.scheme):
        parser.error(f"{flag}: neither URL is https")
    try:
        trust = Trust(
            Path(args.ca_file) if args.ca_file else None, args.insecure, values.headers(args.header)
        )
        trust.verify()
    except OSError as error:
        parser.error(f"--ca-file: {args.ca_file}: {error.strerror or error}")
    except ValueError as error:
        parser.error(f"--header: {error}")
    return trust
