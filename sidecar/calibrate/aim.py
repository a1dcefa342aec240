"""Whom the consumer is told to pull from, and how.

Rule: pure. An engine is given the source's P2P endpoint in the body, a sidecar the source as the endpoint
picker names it, whose P2P port it knows itself (contract section 4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sidecar.endpoint import Endpoint
from sidecar.remote.place import Place
from sidecar.remote.prompts import Directive, by_body, by_header

P2P_PORT = 7777
"""The default of the sidecar's --p2p-connector-port."""

VIAS = ("auto", "engine", "sidecar")


class BadAim(ValueError):
    """A flag that cannot do what it says here; the message names it."""


@dataclass(frozen=True, slots=True)
class Aim:
    """target: of rank 0. by_header: the consumer is a sidecar."""

    target: Endpoint
    by_header: bool

    def of_rank(self, rank: int) -> Endpoint:
        """Ports are counted up (contract section 6)."""
        return self.target.with_port(self.target.port + rank)

    def directive(self, rank: int) -> Callable[[str], Directive]:
        """Makes a request pull, given a fresh id."""
        target = self.of_rank(rank)
        if self.by_header:
            return lambda kv_request_id: by_header(target)
        return lambda kv_request_id: by_body(target, kv_request_id)

    @property
    def text(self) -> str:
        """For a person."""
        how = (
            "header x-kv-cache-source-host-port" if self.by_header else "kv_transfer_params.remote_kv_source"
        )
        return f"{self.target.netloc} ({how})"


def aimed(source: Place, *, through_sidecar: bool, p2p: Endpoint | None, endpoint: Endpoint | None) -> Aim:
    """The aim of a run. p2p, endpoint: of --source-p2p and --source-endpoint. Raises BadAim."""
    if through_sidecar:
        if p2p:
            raise BadAim(
                "--source-p2p: the consumer is a sidecar, which knows the P2P port itself"
                " (its --p2p-connector-port); name the source by --source-endpoint, or say --via=engine"
            )
        return Aim(endpoint or source.endpoint, by_header=True)
    if endpoint:
        raise BadAim(
            "--source-endpoint: the consumer is an engine, which is given the P2P endpoint; name it by"
            " --source-p2p, or say --via=sidecar"
        )
    return Aim(p2p or source.endpoint.with_port(P2P_PORT), by_header=False)
