"""What every exchange needs, built once.

Rule: names the parts and how they are reached; nothing runs here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sidecar import routing
from sidecar.guard import SourceGuard
from sidecar.intake import Limits
from sidecar.observers import Observers
from sidecar.planning import Planner
from sidecar.recall import Turns
from sidecar.replies import Replies
from sidecar.started import StartedLegs
from sidecar.upstream import Upstream
from sidecar.websocket import Tunnels


@dataclass(frozen=True, slots=True)
class Services:
    """The parts (made in sidecar/app.py). guard: None with `--source-guard=off`. turns: None without
    `--enable-bidirectional-kv-xfer`.

    choose(n): picks one of n prefillers.
    """

    rules: routing.Rules
    planner: Planner
    limits: Limits
    upstream: Upstream
    observers: Observers
    tunnels: Tunnels
    guard: SourceGuard | None
    choose: Callable[[int], int]
    started: StartedLegs
    replies: Replies = field(default_factory=Replies)
    turns: Turns | None = None
