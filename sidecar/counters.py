"""Names what is counted besides the figures that records of exchanges give: the seam for whoever acts.

Rule: pure. Who acts calls `counters.add(Event.X)` and knows nothing of metrics; `UNCOUNTED` stands in when
they are off, and then an event costs one empty call.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class Event(StrEnum):
    """What happens beside exchanges; the value is the metric's name, its help is in observers/families.py."""

    DNS_RERESOLVED = "moriio_dns_reresolve_total"
    DNS_IP_CHANGED = "moriio_dns_ip_changed_total"
    DNS_LOOKUP_FAILED = "moriio_dns_lookup_failures_total"
    WORKER_RESTARTED = "llm_d_disagg_sidecar_worker_restarts_total"
    PULL_RESCUED = "llm_d_disagg_sidecar_pull_rescues_total"


class Counters(Protocol):
    """Counts events."""

    def add(self, event: Event) -> None:
        """One more of this event."""


class _Uncounted:
    def add(self, event: Event) -> None:
        """Metrics are off."""


UNCOUNTED: Counters = _Uncounted()
