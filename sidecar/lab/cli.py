"""`sidecar lab`: an embedded engine to try things with, and the demonstration.

Rule: parses flags and runs; the flags of `engine` are the fields of `EngineConfig`.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import signal
import sys
from collections.abc import Sequence
from typing import Any

from sidecar.lab.config import EngineConfig
from sidecar.parser import Parser

FLAG_DEFAULTS = {"port": 8200, "p2p_port": 7777, "nixl_port": 5600}
"""The well-known ports: --model-server-port and --p2p-connector-port of the sidecar, vLLM's 5600 (NIXL)."""

USAGE_ERROR = 2
USAGE = """usage: sidecar lab {engine,demo} ...

  engine  a simulated vLLM 0.32 engine
  demo    two pods and a pull"""


def main(argv: Sequence[str]) -> int:
    """Runs `engine …` or `demo …`; returns 0, 1 (the engine died or cannot start) or 2 (bad flags)."""
    command, rest = (argv[0], argv[1:]) if argv else ("", [])
    match command:
        case "engine":
            return _engine(rest)
        case "demo":
            # Imported when asked for: it brings the whole sidecar with it.
            from sidecar.lab.demo import main as demo

            return demo(rest)
        case "-h" | "--help":
            print(USAGE)
            return 0
        case other:
            print(f"sidecar lab: {other or 'nothing'}: not one of engine, demo", file=sys.stderr)
            return USAGE_ERROR


def engine_parser() -> argparse.ArgumentParser:
    """One flag per field of `EngineConfig`."""
    parser = Parser(
        prog="sidecar lab engine",
        description="A simulated vLLM 0.32: HTTP API, KV caches, P2P and NIXL transfers, metrics and faults.",
        allow_abbrev=False,
    )
    for field in dataclasses.fields(EngineConfig):
        default = FLAG_DEFAULTS.get(field.name, field.default)
        told = f" (default: {default})" if default != "" else ""
        options: dict[str, Any] = {"default": default, "help": f"{field.metadata['help']}{told}"}
        if isinstance(default, bool):
            options["action"] = argparse.BooleanOptionalAction
        else:
            options |= {"type": type(default), "choices": field.metadata["choices"] or None}
        parser.add_argument(f"--{field.name.replace('_', '-')}", **options)
    return parser


def _engine(argv: Sequence[str]) -> int:
    parser = engine_parser()
    try:
        config = EngineConfig(**vars(parser.parse_args(argv)))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else USAGE_ERROR
    except ValueError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return USAGE_ERROR
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    return asyncio.run(_serve(config))


async def _serve(config: EngineConfig) -> int:
    from sidecar.lab.engine import Engine  # so that --help and bad flags answer at once

    engine = Engine(config)
    try:
        await engine.start()
    except OSError as error:
        print(f"sidecar lab engine: {error.strerror or error}", file=sys.stderr)
        return 1
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, engine.ended.set)
    peers = [f"P2P {engine.p2p_host}:{engine.p2p_port}"] if engine.p2p_port else []
    peers += [f"NIXL {engine.p2p_host}:{engine.nixl_port}"] if engine.nixl_port else []
    print(f"engine {config.model} ready at {engine.url}", *peers, sep=", ", flush=True)
    await engine.ended.wait()
    await engine.stop()
    return 1 if engine.died else 0
