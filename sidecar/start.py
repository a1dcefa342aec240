"""Starts the sidecar: opens its ports, and serves in this process or in one for each rank and worker.

Rule: acts. Whatever can be wrong is found before the first process is forked, and said in one line; what is
expensive or must be the same everywhere (certificate, figures) is made once and inherited.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sidecar import __version__, headers, logs
from sidecar.app import Shared, server_of
from sidecar.counters import Event
from sidecar.engine_tls import EngineTLS
from sidecar.heap import collect_seldom, keep_freed_memory
from sidecar.metrics_port import MetricsPort
from sidecar.observers import Observer
from sidecar.observers.board import Board, RowCounters
from sidecar.observers.log import ExchangeLog
from sidecar.observers.metrics import Metrics
from sidecar.observers.peers import PeerBoard
from sidecar.observers.pull_metrics import PullMetrics
from sidecar.parts import own_endpoint
from sidecar.ports import Ports, PortTaken, take_ports
from sidecar.processes import CUT, Calls, Job, supervise, tried
from sidecar.protection import protects, try_cluster
from sidecar.server.tls import serving_context
from sidecar.settings import Settings, start_line
from sidecar.stages import trust_of

if TYPE_CHECKING:
    from sidecar.observers.tracing import Tracing

logger = logging.getLogger("sidecar")


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of one serving process. row: of the board."""

    rank: int
    worker: int
    row: int


def serve(settings: Settings, warnings: Sequence[str] = ()) -> int:
    """Serve until SIGTERM or SIGINT. The exit code: 0; 1 if a port cannot be had; 2 for a wrong setting.

    warnings: what the settings' user should be told, logged once at the start.
    """
    logs.configure(settings.log_level, settings.log_format)
    keep_freed_memory(os.environ)
    places = [
        (rank, worker) for rank in range(settings.data_parallel_size) for worker in range(settings.workers)
    ]
    seats = [Seat(rank, worker, row) for row, (rank, worker) in enumerate(places)]
    try:
        try_cluster(settings)
        EngineTLS(trust_of(settings))
        ports = take_ports(settings)
        shared = Shared.of(settings, _metrics_port(settings, ports, rows=len(seats) + 1))
    except PortTaken as taken:
        return _refuse(1, str(taken))
    except ValueError as error:  # says which flag
        return _refuse(2, str(error))
    run = partial(_run, settings, ports, shared)
    if len(seats) == 1:
        return run(seats[0], started=partial(_say, settings, warnings))
    if refused := tried(partial(_try_tracing, settings)):
        return refused
    _say(settings, warnings)
    jobs = [Job(f"rank {seat.rank} worker {seat.worker}", partial(run, seat)) for seat in seats]
    return supervise(jobs, _calls(ports, shared.metrics, len(seats)), settings.shutdown_grace_s)


def _run(
    settings: Settings,
    ports: Ports,
    shared: Shared,
    seat: Seat,
    *,
    started: Callable[[], None] = lambda: None,
) -> int:
    """Serve one rank in this process. started: called once nothing can be refused any more."""
    try:
        tracing = _tracing(settings, seat.rank)
        row = shared.metrics.board.row(seat.row) if shared.metrics else None
        serving = server_of(settings, _observers(shared, seat, tracing), shared, rank=seat.rank, row=row)
        serving.cut_by = CUT if settings.processes > 1 else None
        started()
        listener = ports.listener(seat.rank)
        collect_seldom()
    except PortTaken as taken:
        return _refuse(1, str(taken))
    except ValueError as error:  # says which variable or flag
        return _refuse(2, str(error))
    try:
        serving.run(sockets=[listener])
    finally:
        if tracing:
            tracing.shutdown()
    return 0


def _observers(shared: Shared, seat: Seat, tracing: Tracing | None) -> list[Observer]:
    return [ExchangeLog(), *_metrics(shared, seat), *([tracing] if tracing else [])]


def _metrics(shared: Shared, seat: Seat) -> Iterator[Observer]:
    if shared.metrics:
        row, peers = shared.metrics.board.row(seat.row), shared.metrics.peers
        yield Metrics(row)
        yield PullMetrics(row, peers.row(seat.row) if peers else None)


def _calls(ports: Ports, metrics: MetricsPort | None, row: int) -> Calls:
    """What the parent does, which counts in `row`; those of the processes are the first ones, in order."""
    if metrics is None:
        return Calls(ports.close, restarted=lambda: None, ended=lambda seat: None)
    restarted = partial(RowCounters(metrics.board.row(row)).add, Event.WORKER_RESTARTED)
    return Calls(ports.close, restarted, ended=metrics.board.clear_gauges)


def _metrics_port(settings: Settings, ports: Ports, *, rows: int) -> MetricsPort | None:
    """Raises ValueError when its certificate cannot be used."""
    if ports.metrics is None:
        return None
    directory = settings.metrics_cert_dir
    version, suites = settings.tls_min_version, settings.tls_cipher_suites
    tls = serving_context(directory, version, suites, None, flag="--metrics-cert-dir") if directory else None
    return MetricsPort(ports.metrics, tls, Board(rows), PeerBoard(rows) if settings.metrics_peers else None)


def _tracing(settings: Settings, rank: int) -> Tracing | None:
    if not settings.tracing:
        return None
    from sidecar.observers.spans import Setting  # only when it is on
    from sidecar.observers.tracing import Tracing, tracer_provider

    setting = Setting(
        settings.kv_connector,
        ec_connector=settings.ec_connector,
        scheme="https" if settings.secure_serving else "http",
        own=own_endpoint(settings, rank),
        guarded=settings.source_guard == "on",
    )
    return Tracing(tracer_provider(os.environ, __version__), setting)


def _try_tracing(settings: Settings) -> int:
    """What is wrong with tracing, said once and not by every process; exporters have threads, so no fork."""
    try:
        _tracing(settings, 0)
    except ValueError as error:
        return _refuse(2, str(error))
    return 0


def _refuse(code: int, reason: str) -> int:
    sys.stderr.write(f"sidecar: {reason}\n")
    return code


def _say(settings: Settings, warnings: Sequence[str]) -> None:
    """The start line, and what an operator should know from the first line on (contract section 1)."""
    with suppress(OSError):  # a log that cannot be written stops nothing (logs.Lines)
        logs.say(start_line(settings, __version__))
    for warning in warnings:
        logger.warning("%s", warning)
    if not protects(settings):
        names = ", ".join(sorted(name.decode() for name in headers.ROUTING))
        logger.warning(
            "SSRF protection is off (--enable-ssrf-protection): whoever reaches this port chooses what hosts "
            "are contacted, by the headers %s",
            names,
        )
    if not settings.pod_ip:
        logger.warning("POD_IP is not set: a KV source that is this pod itself cannot be recognised")
