"""The flags of `sidecar doctor`.

Rule: parses only; what is wrong is a ValueError, or argparse's exit, in one line that names the flag.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sidecar.parser import Parser
from sidecar.remote.client import Trust
from sidecar.settings.durations import parse_duration

_ABOUT = """\
Examines engines, or sidecars in front of them, for what makes pulls between them move nothing, and says what
to change. Each pair of peers is tried with real pulls of fresh prompts; a peer whose P2P port is shut is
never named to another. Run it where pods reach one another by their own addresses.

  sidecar doctor --peers http://10.0.0.1:8000,http://10.0.0.2:8000
  sidecar doctor --inference-pool models/vllm --metrics-port 9090
  sidecar doctor --peers http://10.0.0.1:8000,http://10.0.0.2:8000 --verify-pull

Exit code by the worst finding: 0 none above a note, 1 a warning, 3 an error; 2 wrong usage.
"""
_WIDEST_PORT = 65535
# With room for the ranks that are counted up from it.
_WIDEST_P2P_PORT = _WIDEST_PORT - 64
# A prompt that takes a second or less, and fills enough blocks to tell whole from part.
_PROMPT_TOKENS = 1024
_MOST_PROMPT_TOKENS = 1_000_000
# All pairs of four peers.
_PAIRS = 12
_MOST_PAIRS = 4096


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for; see the flags of the same names."""

    peers: tuple[str, ...]
    pool: str | None
    pool_group: str
    scheme: str
    p2p_port: int
    p2p: tuple[str, ...]
    metrics_port: int
    metrics: tuple[str, ...]
    prompt_tokens: int
    most_pairs: int
    timeout_s: float
    verify: bool
    as_json: bool
    watch: bool
    interval_s: float
    trust: Trust


def parse(argv: Sequence[str]) -> Options:
    """The options. Raises SystemExit (--help, or what argparse refuses) or ValueError."""
    given = _parser().parse_args(argv)
    peers = tuple(url for text in given.peers for url in text.split(",") if url)
    if bool(peers) == bool(given.inference_pool):
        raise ValueError("--peers or --inference-pool: one of the two, and not both")
    return Options(
        peers=peers,
        pool=given.inference_pool,
        pool_group=given.pool_group,
        scheme=given.scheme,
        p2p_port=given.p2p_port,
        p2p=tuple(given.p2p),
        metrics_port=given.metrics_port,
        metrics=tuple(given.metrics),
        prompt_tokens=given.prompt_tokens,
        most_pairs=given.max_pairs,
        timeout_s=given.timeout,
        verify=given.verify_pull,
        as_json=given.json or given.output == "json",
        watch=given.watch,
        interval_s=given.interval,
        trust=_trust(given),
    )


def _trust(given: argparse.Namespace) -> Trust:
    headers: dict[str, str] = {}
    for text in given.header:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"-H: {text.partition(':')[0]!r} is not 'name: value'")
        headers[name.strip()] = value.strip()
    trust = Trust(given.ca_file, given.insecure, headers)
    try:
        trust.verify()
    except OSError as error:
        raise ValueError(f"--ca-file: {given.ca_file}: {error.strerror or error}") from None
    return trust


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="sidecar doctor",
        usage="sidecar doctor --peers URL,URL... | --inference-pool NS/NAME [--verify-pull] [--watch] ...",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--peers", action="append", default=[], metavar="URL,...", help="engines or sidecars; two at least")
    add(
        "--inference-pool", metavar="NS/NAME", help="the pods of an InferencePool (needs sidecar[kubernetes])"
    )
    add("--pool-group", default="inference.networking.k8s.io", metavar="NAME", help="its API group")
    add("--scheme", choices=("http", "https"), default="http", help="how the pool's pods are reached")
    add("--verify-pull", action="store_true", help="the five gates, by the first two peers, instead of pairs")
    add("--watch", action="store_true", help="again and again, until Ctrl-C")
    add("--interval", type=_duration, default=30.0, metavar="DURATION", help="between two of them (30s)")
    add(
        "--output",
        choices=("text", "json"),
        default="text",
        help="json: one object, a line each with --watch",
    )
    add("--json", action="store_true", help="the same as --output json")
    _add_where(parser)
    _add_bounds(parser)
    return parser


def _add_where(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    port = _whole(1, _WIDEST_PORT)
    add(
        "--p2p-port",
        type=_whole(1, _WIDEST_P2P_PORT),
        default=7777,
        metavar="PORT",
        help="of the peers' P2P tiers, rank 0 (7777)",
    )
    add(
        "--p2p",
        action="append",
        default=[],
        metavar="PEER=HOST:PORT",
        help="one peer's, by name (A, B, ...) or URL; a PORT alone is at the URL's host",
    )
    add(
        "--metrics-port", type=port, default=0, metavar="PORT", help="of the peers' sidecars; none by default"
    )
    add("--metrics", action="append", default=[], metavar="PEER=URL", help="one sidecar's; or PEER=PORT")
    add("--ca-file", type=Path, metavar="PATH", help="PEM file of the authorities of peers' certificates")
    add("-k", "--insecure", action="store_true", help="accept any certificate")
    add(
        "-H",
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="with every request, such as a credential",
    )


def _add_bounds(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--prompt-tokens",
        type=_whole(1, _MOST_PROMPT_TOKENS),
        default=_PROMPT_TOKENS,
        metavar="N",
        help=f"of each prompt, fitted to blocks ({_PROMPT_TOKENS})",
    )
    add(
        "--max-pairs",
        type=_whole(1, _MOST_PAIRS),
        default=_PAIRS,
        metavar="N",
        help=f"pairs that are tried ({_PAIRS}); what is left out is said",
    )
    add("--timeout", type=_duration, default=20.0, metavar="DURATION", help="of one answer (20s)")


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not least <= int(text[:9]) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return read


def _duration(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time at all")
    return seconds
