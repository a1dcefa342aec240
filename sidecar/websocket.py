"""Opens the tunnel of one WebSocket to the decoder and stays until either side closes.

Rule: acts. The handshake goes to the engine with the client's own headers, less routing ones; from then on
bytes are bytes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from sidecar import headers as names
from sidecar.engine_tls import EngineTLS
from sidecar.errors import EngineDied, LegFailed
from sidecar.naming import unconnected
from sidecar.observers import Attempt, LegRecord, Observers
from sidecar.plan import Leg
from sidecar.server.tunnel import EngineGone, Upstream, tunnel

# The stage's name in `--enable-tls`.
DECODER = "decoder"

if TYPE_CHECKING:
    from sidecar.server.client import Client


@dataclass(frozen=True, slots=True)
class Tunnels:
    """The way to the decoder for bytes that are not HTTP, with what TLS there is towards it."""

    observers: Observers
    tls: EngineTLS
    connect_timeout_s: float

    async def run(self, client: Client, record: LegRecord) -> None:
        """Relay the whole session.

        Raises EngineUnreachable or EngineDied, both before the client got any answer.
        """
        leg = record.leg
        tls = self.tls.towards(DECODER) if self.tls.secures(DECODER) else None
        target = Upstream(
            leg.target.host,
            leg.target.port,
            tls.context if tls else None,
            self.connect_timeout_s,
            tls.server_name if tls else None,
        )
        attempt = Attempt(leg=record, headers=list(leg.headers), started_s=monotonic())
        record.attempts = 1

        def answered(status: int) -> None:
            attempt.status = record.status = record.exchange.status = status

        with self.observers.leg(record), self.observers.attempt(attempt):
            try:
                await tunnel(client, target, _head(leg, attempt), answered)
            except EngineGone as error:
                raise _failed(record, EngineDied(leg)) from error
            except OSError as error:
                late = isinstance(error, TimeoutError)
                raise _failed(record, unconnected(error, leg, late=late)) from error
            except asyncio.CancelledError:
                attempt.error = record.error = "cancelled"
                raise
            finally:
                record.ended_s = monotonic()


def _failed(record: LegRecord, error: LegFailed) -> LegFailed:
    record.error = error.label
    return error


def _head(leg: Leg, attempt: Attempt) -> bytes:
    """The handshake's request head (RFC 6455 section 4.1)."""
    lines = [b"%b %b HTTP/1.1" % (leg.method, leg.path), b"Host: " + leg.target.netloc.encode()]
    lines += [b"%b: %b" % header for header in attempt.headers if header[0].lower() != names.HOST]
    return b"\r\n".join(lines) + b"\r\n\r\n"
