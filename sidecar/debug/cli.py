"""`sidecar explain`: what would become of a request, asked of a running sidecar or worked out from flags.

Rule: takes what is pasted from a curl command; prints, and sends nothing to an engine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from sidecar import bounded
from sidecar.debug.explain import Deciding, explained
from sidecar.debug.reasons import SourceState
from sidecar.debug.told import Told, read
from sidecar.debug.tree import tree
from sidecar.headers import Headers
from sidecar.parser import Parser
from sidecar.parts import deciders
from sidecar.remote.texts import MOST_CHARACTERS, Unreadable, quoted, shown
from sidecar.server.client import BodyTooLarge
from sidecar.settings import SettingsError, load
from sidecar.stages import schemes_of

_NO_ANSWER, _WRONG_USAGE = 1, 2
# Nothing is computed for an answer; over a slow link a prompt of megabytes takes seconds.
_TIMEOUT_S = 30.0
# With --prompts an explanation has a body for each leg: eight of the largest that are read by default.
_MOST_BYTES = 512 * 1024 * 1024

_ABOUT = """\
Says which legs a request would make, and why, without sending anything to an engine. With a URL the sidecar
that serves --metrics-port there is asked (it needs --debug-endpoints), with a path alone the answer is worked
out here from the sidecar's flags after "--". Write it like the curl command, at the debug port:

  sidecar explain http://localhost:9090/v1/completions -H 'x-prefiller-host-port: 10.0.0.2:8000' -d @body.json
  sidecar explain /v1/completions -H 'x-prefiller-host-port: 10.0.0.2:8000' -d @body.json --
  --kv-connector=offloading
"""


def main(argv: Sequence[str]) -> int:
    """Run it: 0 when an explanation was printed, 1 when there was no answer, 2 for wrong usage."""
    own, flags = _split(argv)
    try:
        args = _parser().parse_args(own)
        posed = Posed(*_place(args.where), *_content(args))
        content = asyncio.run(_asked(posed, flags, prompts=args.prompts, verify=not args.insecure))
        told = _told(content, posed.base)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else _WRONG_USAGE
    except SettingsError as refused:
        return _refuse(_WRONG_USAGE, *refused.problems)
    except (ValueError, OSError) as error:
        return _refuse(_WRONG_USAGE, str(error))
    except NoAnswer as none:
        return _refuse(_NO_ANSWER, str(none))
    print(content.decode().rstrip() if args.raw else "\n".join(tree(told)))
    return 0


def _told(content: bytes, base: str) -> Told:
    """Raises NoAnswer."""
    try:
        return read(content)
    except Unreadable:
        raise NoAnswer(f"{base}: what answers there is no sidecar's debug port") from None


# RFC 9110 sections 5.1 and 5.5; llhttp lets no control character through to a sidecar either, but tabs.
_HEADER = re.compile(rb"[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")


class NoAnswer(Exception):
    """The debug port gave no explanation; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Posed:
    """The request. base: scheme and authority of the debug port; empty to work it out here."""

    base: str
    target: bytes
    headers: Headers
    content: bytes

    async def read_body(self, limit_bytes: int) -> bytes:
        """See intake.Asking."""
        if len(self.content) > limit_bytes:
            raise BodyTooLarge(limit_bytes)
        return self.content


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Ours, and after "--" the sidecar's."""
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="sidecar explain",
        usage="sidecar explain URL|PATH [-H HEADER]... [-d BODY] [--prompts] [--raw] [-k] [-- --FLAG ...]",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("where", metavar="URL|PATH", help="the request's path, at the debug port if a URL")
    parser.add_argument(
        "-H", "--header", action="append", default=[], metavar="'NAME: VALUE'", help="a header of the request"
    )
    data = ("-d", "--data", "--data-raw", "--data-binary", "--json")
    parser.add_argument(*data, dest="data", default="", metavar="BODY", help="its body; @FILE, @- for stdin")
    parser.add_argument("--prompts", action="store_true", help="show bodies whole")
    parser.add_argument("--raw", action="store_true", help="print JSON instead of a tree")
    parser.add_argument("-k", "--insecure", action="store_true", help="accept any certificate")
    # What stands in curl commands and changes nothing here.
    for name in ("-s", "-S", "-i", "-v", "-N"):
        parser.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-X", choices=["POST"], help=argparse.SUPPRESS)
    return parser


def _place(where: str) -> tuple[str, bytes]:
    """Base and request target. Raises ValueError."""
    if "@" in where.partition("//")[2].partition("/")[0]:
        raise ValueError("a URL with a user or password (it is not shown here): say them with -H")
    if not where.isprintable():  # bytes that are no text of the locale, among others
        raise ValueError(f"{where!r}: has characters that must be percent-encoded")
    try:
        parts = urlsplit(where)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"{where!r}: {error}") from None
    if not parts.path.startswith("/"):
        raise ValueError(f"{where!r}: neither a URL with a path nor a path, such as /v1/chat/completions")
    if parts.scheme and (parts.scheme not in ("http", "https") or not parts.netloc):
        raise ValueError(f"{where!r}: not an http or https URL")
    base = f"{parts.scheme}://{parts.netloc}" if parts.scheme else ""
    try:
        _ = httpx.URL(base).host  # is decoded now (RFC 5891: a label of xn-- and no name)
    except (httpx.InvalidURL, UnicodeError):
        raise ValueError(f"{where!r}: not a host") from None
    query = f"?{parts.query}" if parts.query else ""
    return base, (parts.path + query).encode()


def _content(args: argparse.Namespace) -> tuple[Headers, bytes]:
    """Headers and body. Raises ValueError."""
    headers = [_header(os.fsencode(text)) for text in args.header]
    if not any(name.lower() == b"content-type" for name, _ in headers):
        headers.append((b"content-type", b"application/json"))
    return tuple(headers), _body(args.data)


def _header(given: bytes) -> tuple[bytes, bytes]:
    """Raises ValueError, which does not repeat what was given: it may be a credential."""
    header = _HEADER.fullmatch(given)
    if header is None:
        raise ValueError("-H: not 'NAME: VALUE' with a header's name, in one line (it is not shown here)")
    return header[1], header[2]


def _body(data: str) -> bytes:
    if not data.startswith("@"):
        return os.fsencode(data)
    try:
        return sys.stdin.buffer.read() if data == "@-" else Path(data[1:]).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ValueError(f"-d: {quoted(data)}: {getattr(error, 'strerror', None) or error}") from None


async def _asked(posed: Posed, flags: list[str], *, prompts: bool, verify: bool) -> bytes:
    if not posed.base:
        return await explained(posed, _deciding(flags), prompts=prompts)
    if flags:
        raise ValueError("flags after -- go with a path alone: a running sidecar has its own")
    return await _answer(posed, prompts=prompts, verify=verify)


def _deciding(flags: list[str]) -> Deciding:
    settings = load(flags, os.environ)
    decides = deciders(settings)
    state = SourceState("off" if settings.source_guard == "off" else "unknown")
    return Deciding(
        decides.rules,
        decides.planner,
        decides.limits,
        random.randrange,
        settings.kv_connector,
        schemes_of(settings),
        lambda p2p: state,
    )


async def _answer(posed: Posed, *, prompts: bool, verify: bool) -> bytes:
    """The debug port's. Raises NoAnswer."""
    query = {"path": posed.target.decode(), "prompts": str(int(prompts))}
    url = httpx.URL(f"{posed.base}/debug/explain", params=query)
    # Not built by the client, which would add headers of its own to those of the request.
    request = httpx.Request("POST", url, headers=list(posed.headers), content=posed.content)
    try:
        async with httpx.AsyncClient(verify=verify, timeout=_TIMEOUT_S, trust_env=False) as client:
            response = await client.send(request, stream=True)
            try:
                content = await bounded.whole(response, _MOST_BYTES)
            finally:
                await response.aclose()
    except (httpx.TransportError, OSError) as error:
        raise NoAnswer(f"{posed.base}: {str(error) or type(error).__name__}") from None
    if response.status_code == 404:
        raise NoAnswer(f"{posed.base}: no debug endpoints there (--debug-endpoints, on --metrics-port)")
    if not response.is_success:
        said = shown(content[:MOST_CHARACTERS].decode("utf-8", "replace"))
        raise NoAnswer(f"{posed.base}: answered {response.status_code}: {said}")
    return content


def _refuse(code: int, *problems: str) -> int:
    for problem in problems:
        print(f"sidecar explain: {problem}", file=sys.stderr)
    return code
