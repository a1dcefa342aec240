"""Runs `sidecar doctor` as a user does, against embedded engines with and without sidecars."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sidecar.doctor.cli import main
from sidecar.lab import Engine
from tests.debug.serving import DEBUG, Debugged, debugging
from tests.lab.bench import make_engine

PROMPT_TOKENS = 128
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
OFFLOADING = "--kv-connector=offloading"


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run printed, and its status."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its document."""
        return json.loads(self.out)

    def verdicts(self) -> dict[str, str]:
        """What became of each pair, as "A to B"."""
        return {f"{one['source']} to {one['consumer']}": one["verdict"] for one in self.json["pairs"]}

    def found(self, least: str = "warning") -> list[tuple[str, str, str]]:
        """Severity, peers and check of the findings that are at least so bad."""
        words = ("ok", "not told", "note", "warning", "error")
        return [
            (one["severity"], " ".join(one["about"]), one["check"])
            for one in self.json["findings"]
            if words.index(one["severity"]) >= words.index(least)
        ]

    def one(self, check: str, *about: str) -> dict[str, Any]:
        """The only finding of a check, about these peers if any are named."""
        [found] = [
            one
            for one in self.json["findings"]
            if one["check"] == check and (not about or one["about"] == list(about))
        ]
        return dict(found)


async def doctor(*argv: str) -> Ran:
    """The command in this process, beside the engines of the test's own loop."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = await asyncio.to_thread(main, argv)
    return _seen(Ran(code, out.getvalue(), err.getvalue()))


def _seen(ran: Ran) -> Ran:
    """The same, printed too, for whoever reads why a test fails."""
    print(ran.out, ran.err)
    return ran


async def started(*argv: str) -> asyncio.subprocess.Process:
    """The command as a process."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "sidecar", "doctor", *argv),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ended(process: asyncio.subprocess.Process) -> Ran:
    """The same once it has ended."""
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode is not None
    return _seen(Ran(process.returncode, out.decode(), err.decode()))


@asynccontextmanager
async def peers(*kinds: dict[str, Any]) -> AsyncIterator[tuple[list[Engine], list[str]]]:
    """Engines on addresses of their own, and the flags that name them."""
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(make_engine(host, **kind))
            for host, kind in zip(HOSTS, kinds, strict=False)
        ]
        yield engines, named(engines, [engine.url for engine in engines])


def named(engines: list[Engine], urls: list[str]) -> list[str]:
    """The flags that name peers at these URLs, with small prompts."""
    ends = [f"{engine.p2p_host}:{engine.p2p_port or 9}" for engine in engines]
    p2p = [f"--p2p={url}={end}" for url, end in zip(urls, ends, strict=True)]
    return [f"--peers={','.join(urls)}", *p2p, f"--prompt-tokens={PROMPT_TOKENS}"]


def at(flags: list[str], name: str, end: str) -> list[str]:
    """The same flags, of which one peer's P2P tier is somewhere else."""
    p2p = [index for index, flag in enumerate(flags) if flag.startswith("--p2p=")]
    changed = p2p[ord(name) - ord("A")]
    return [f"--p2p={name}={end}" if index == changed else flag for index, flag in enumerate(flags)]


@asynccontextmanager
async def pods(
    *flags: str, debug: bool = True, **of_both: Any
) -> AsyncIterator[tuple[list[Debugged], list[str]]]:
    """Two engines at one P2P port, each with a sidecar in front, and the flags that name the sidecars.

    debug: sidecars have debug endpoints; their metrics ports are named in any case.
    """
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(make_engine(**of_both))
        places: dict[str, Any] = {"p2p_host": HOSTS[1], "p2p_port": first.p2p_port}
        engines = [first, await stack.enter_async_context(make_engine(**{**of_both, **places}))]
        more = (f"--p2p-connector-port={first.p2p_port}", *([DEBUG] if debug else []), *flags)
        sidecars = [
            await stack.enter_async_context(debugging(engine.port, "--source-guard-timeout=2s", *more))
            for engine in engines
        ]
        urls = [f"http://127.0.0.1:{sidecar.data.port}" for sidecar in sidecars]
        ports = [sidecar.debug.port for sidecar in sidecars]
        metrics = [f"--metrics={url}={port}" for url, port in zip(urls, ports, strict=True)]
        yield sidecars, [*named(engines, urls), *metrics]
