"""What every exchange needs, built once.

Rule: names the parts and how they are reached; nothing runs here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sidecar import routing
from sidecar.concurrency import Concurrency
from sidecar.counters import UNCOUNTED, Counters
from sidecar.engine_tls import EngineTLS
from sidecar.guard import SourceGuard
from sidecar.intake import Limits
from sidecar.moriio_hosts import MoRIIOHosts
from sidecar.observers import Observers
from sidecar.planning import Planner
from sidecar.protection import Protection
from sidecar.recall import Turns
from sidecar.replies import Replies
from sidecar.rescue import Rescuer
from sidecar.scraping import Scraper
from sidecar.source_counters import SourceCounters
from sidecar.started import StartedLegs
from sidecar.upstream import Upstream
from sidecar.verify import Verifier
from sidecar.websocket import Tunnels
from sidecar.yields import Yields


@dataclass(frozen=True, slots=True)
class Services:
    """The parts (made in sidecar/app.py). guard: None with `--source-guard=off`. rescuer: None with
    `--pull-rescue-after=0`. turns: None without `--enable-bidirectional-kv-xfer`. source_counters: None where
    the sources of pulls are not asked.

    protection: where legs may go. engine_tls: towards engines. choose(n): picks one of n prefillers.
    counters: of what happens beside the records of exchanges. debug: whether clients may ask by header what
    was done for them.
    """

    rules: routing.Rules
    planner: Planner
    limits: Limits
    upstream: Upstream
    observers: Observers
    tunnels: Tunnels
    guard: SourceGuard | None
    moriio_hosts: MoRIIOHosts
    choose: Callable[[int], int]
    started: StartedLegs
    yields: Yields
    verifier: Verifier
    source_counters: SourceCounters | None
    rescuer: Rescuer | None
    scraper: Scraper
    protection: Protection
    engine_tls: EngineTLS
    concurrency: Concurrency
    counters: Counters = UNCOUNTED
    debug: bool = False
    replies: Replies = field(default_factory=Replies)
    turns: Turns | None = None
