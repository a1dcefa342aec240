"""The proxies that are compared: how each is started.

Rule: one line of command per proxy. A sidecar of other settings than the column's is a variant; one whose
flag the sidecar refuses is left out, with the sidecar's own reason.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sidecar.settings import SettingsError, load

FLOOR = "floor"
SIDECAR = "sidecar"
NAIVE = "naive"
ROUTER = "vllm-router"
PEER = "peer"

TRACED_10, TRACED_ALL = TRACING = ("traced10", "traced100")
WORKERS_1, WORKERS_2 = WORKERS = ("workers1", "workers2")

# The table's columns, and what can be asked for by --proxies.
SHOWN = (FLOOR, SIDECAR, NAIVE)
VARIANTS = (*TRACING, *WORKERS)
# Which process does a column's prefill/decode job.
HANDOFF: Mapping[str, str] = {FLOOR: "floor-pd", SIDECAR: "sidecar-pd", NAIVE: NAIVE}
# Those whose every request has to be a pull at the engine.
PULLING = frozenset((SIDECAR, *VARIANTS))

_FLAGS = ("--host=127.0.0.1", "--port={port}", "--model-server-port={engine}", "--secure-serving=false")
_PULLS = ("--kv-connector=offloading", "--source-guard=on", "--p2p-connector-port={p2p}")
_METRICS = "--metrics-port={metrics}"
# An even share of the sampled ones; batches leave twice a second, so that runs of a second have them too.
_TRACING = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:{sink}", "OTEL_BSP_SCHEDULE_DELAY": "500"}
_TENTH = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"}
_BARE = "{python} -m tests.bench."
_ROUTER = (
    "{router} --host 127.0.0.1 --port {port} --worker-urls http://127.0.0.1:{engine} --policy round_robin "
    "--prometheus-port {metrics} --log-level warning"
)


@dataclass(frozen=True, slots=True)
class Command:
    """A command with {port}, {engine} and other ports left open, and what it needs in its environment."""

    line: str
    environ: Mapping[str, str]


def _sidecar(*flags: str, environ: Mapping[str, str] | None = None) -> Command:
    metrics = () if refusal(_METRICS) else (_METRICS,)
    words = ("{python} -m sidecar serve", *_FLAGS, *flags, *metrics)
    return Command(" ".join(words), environ or {})


def refusal(*flags: str) -> str | None:
    """Why the sidecar would not start with these flags; None when it would."""
    ports = {"port": 18001, "engine": 18002, "p2p": 18003, "metrics": 18004}
    try:
        load([flag.format(**ports) for flag in (*_FLAGS, *_PULLS, *flags)], {})
    except SettingsError as error:
        return str(error)
    return None


def commands() -> Mapping[str, Command]:
    """Every proxy but those that its user names."""
    return {
        FLOOR: Command(_BARE + "floor {port} {engine}", {}),
        HANDOFF[FLOOR]: Command(_BARE + "floor {port} {engine} 2", {}),
        SIDECAR: _sidecar(*_PULLS),
        HANDOFF[SIDECAR]: _sidecar("--kv-connector=nixlv2"),
        NAIVE: Command(_BARE + "naive {port} {engine}", {}),
        TRACED_10: _sidecar(*_PULLS, "--tracing", environ=_TRACING | _TENTH),
        TRACED_ALL: _sidecar(*_PULLS, "--tracing", environ=_TRACING),
        WORKERS_1: _sidecar(*_PULLS, "--workers=1"),
        WORKERS_2: _sidecar(*_PULLS, "--workers=2"),
        ROUTER: Command(_ROUTER, {}),
    }


def named_by_user() -> Mapping[str, Command]:
    """The proxy of the environment's PEER, if there is one."""
    line = os.environ.get(PEER.upper())
    return {PEER: Command(line, {})} if line else {}


def refused(variants: Sequence[str]) -> dict[str, str]:
    """The variants that the sidecar has no flag for, with its reasons."""
    needs = {WORKERS_1: "--workers=1", WORKERS_2: "--workers=2"}
    reasons = {name: refusal(needs[name]) for name in variants if name in needs}
    return {name: reason for name, reason in reasons.items() if reason}
