"""The command line of `sidecar doctor`: its flags, their limits and their help.

Rule: parses single flags only; every limit is told in the help and in the refusal.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

from sidecar.doctor.peers import MOST_PEERS, place
from sidecar.parser import Parser
from sidecar.remote import values
from sidecar.remote.facts import QUESTION_S
from sidecar.remote.place import MalformedPlace, Place

PROG = "sidecar doctor"
POOL_GROUP = "inference.networking.k8s.io"
SCHEME = "http"
INTERVAL_S = 30.0
"""Longer than a round of all pairs of four peers takes."""
PAIRS = 12
"""All pairs of four peers."""
_MOST_PAIRS = 4096
_P2P_PORT = 7777
_WIDEST_PORT = 65535
# With room for the ranks that are counted up from it.
_WIDEST_P2P_PORT = _WIDEST_PORT - 64
# A prompt that takes a second or less, and fills enough blocks to tell whole from part.
_PROMPT_TOKENS = 1024
_MOST_PROMPT_TOKENS = 1_000_000
# A prompt of the default length takes seconds on the slowest engine.
_TIMEOUT_S = 20.0

_ABOUT = """\
Examines engines, or sidecars in front of them, for what makes pulls between them move nothing, and says what
to change. Each pair of peers is tried with real pulls of fresh prompts; a peer whose P2P port is shut is
never named to another. Run it where pods reach one another by their own addresses.

  sidecar doctor --peers http://10.0.0.1:8000,http://10.0.0.2:8000
  sidecar doctor --inference-pool models/vllm --metrics-port 9090
  sidecar doctor --peers http://10.0.0.1:8000,http://10.0.0.2:8000 --verify-pull

Exit code by the worst finding: 0 none above a note, 1 a warning, 3 an error; 2 wrong usage, or no access to
the cluster; 70 a fault of its own; 74 standard output cannot be written. Ctrl-C: that of the last whole round
(--watch), 130 before one; SIGTERM and SIGHUP are as Ctrl-C.
"""


# RFC 1123 names: labels of namespaces and groups, subdomains of other objects and of groups.
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_SUBDOMAIN = rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*"
_GROUP = re.compile(_SUBDOMAIN, re.ASCII)
_POOL = re.compile(rf"(?:{_LABEL}/)?{_SUBDOMAIN}", re.ASCII)


def parser() -> argparse.ArgumentParser:
    """All of them. The refusals of its readers end the program, and name the flag."""
    made = Parser(
        prog=PROG,
        usage=f"{PROG} --peers URL,URL... | --inference-pool NS/NAME [--verify-pull] [--watch] ...",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for add in (_add_peers, _add_rounds, _add_where, _add_connection):
        add(made)
    return made


def _add_peers(made: argparse.ArgumentParser) -> None:
    add = made.add_argument
    add(
        "--peers",
        action="append",
        type=_places,
        default=[],
        metavar="URL,...",
        help=f"engines or sidecars, 2 to {MOST_PEERS}; HOST:PORT is http",
    )
    add(
        "--inference-pool",
        type=values.kind(_spelled(_POOL), "NS/NAME, names of Kubernetes"),
        metavar="NS/NAME",
        help="the pods of an InferencePool; a bare NAME is in namespace default (needs sidecar[kubernetes])",
    )
    add(
        "--pool-group",
        type=values.kind(_spelled(_GROUP), "an API group"),
        metavar="NAME",
        help=f"its API group ({POOL_GROUP})",
    )
    add("--scheme", choices=("http", "https"), help=f"how the pool's pods are reached ({SCHEME})")


def _add_rounds(made: argparse.ArgumentParser) -> None:
    add = made.add_argument
    add("--verify-pull", action="store_true", help="the five gates, by the first two peers, instead of pairs")
    add("--watch", action="store_true", help="again and again, until Ctrl-C")
    add(
        "--interval",
        type=values.duration,
        metavar="DURATION",
        help=f"between two of them ({INTERVAL_S:g}s; up to 24h)",
    )
    add("--output", choices=("text", "json"), help="json: one object, a line each with --watch (text)")
    add("--json", action="store_true", help="the same as --output json")
    add(
        "--prompt-tokens",
        type=values.whole(1, _MOST_PROMPT_TOKENS),
        default=_PROMPT_TOKENS,
        metavar="N",
        help=f"of each prompt, fitted to blocks ({_PROMPT_TOKENS}; 1 to {_MOST_PROMPT_TOKENS:,})",
    )
    add(
        "--max-pairs",
        type=values.whole(1, _MOST_PAIRS),
        metavar="N",
        help=f"pairs that are tried; what is left out is said ({PAIRS}; 1 to {_MOST_PAIRS:,})",
    )
    add(
        "--timeout",
        type=values.duration,
        default=_TIMEOUT_S,
        metavar="DURATION",
        help=f"of one answer; of one to a question about itself at most {QUESTION_S:g}s"
        f" ({_TIMEOUT_S:g}s; up to 24h)",
    )


def _add_where(made: argparse.ArgumentParser) -> None:
    add = made.add_argument
    add(
        "--p2p-port",
        type=values.whole(1, _WIDEST_P2P_PORT),
        default=_P2P_PORT,
        metavar="PORT",
        help=f"of the peers' P2P tiers, rank 0 ({_P2P_PORT}; 1 to {_WIDEST_P2P_PORT})",
    )
    add(
        "--p2p",
        action="append",
        default=[],
        metavar="PEER=HOST:PORT",
        help="one peer's, by name (A, B, ...) or URL; a PORT alone is at the URL's host",
    )
    add(
        "--metrics-port",
        type=values.whole(1, _WIDEST_PORT),
        default=0,
        metavar="PORT",
        help=f"of the peers' sidecars; none by default (1 to {_WIDEST_PORT})",
    )
    add(
        "--metrics",
        action="append",
        default=[],
        metavar="PEER=URL",
        help="one sidecar's; or PEER=HOST:PORT, PEER=PORT",
    )


def _add_connection(made: argparse.ArgumentParser) -> None:
    add = made.add_argument
    add(
        "--ca-file",
        type=lambda text: Path(values.filename(text)),
        metavar="PATH",
        help="PEM file of the authorities of peers' certificates",
    )
    add("-k", "--insecure", action="store_true", help="accept any certificate")
    add(
        "-H",
        "--header",
        action="append",
        type=values.header,
        default=[],
        metavar="'NAME: VALUE'",
        help="with every request, such as a credential",
    )


def _places(text: str) -> tuple[Place, ...]:
    """URLs with commas between. Raises ArgumentTypeError."""
    try:
        return tuple(values.url(place(url).url) for url in text.split(",") if url)
    except MalformedPlace as error:
        raise argparse.ArgumentTypeError(f"{error}; such as http://10.0.0.1:8000") from None


def _spelled(pattern: re.Pattern[str]) -> Callable[[str], str]:
    """A reader of what the pattern matches, which raises ValueError."""

    def read(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(text)
        return text

    return read
