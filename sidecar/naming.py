"""Names what goes wrong on the way to an engine: third-party exceptions as the error tree calls them.

Rule: pure; an exception that is none of a transport's stays what it is.
"""

from __future__ import annotations

import ssl

import httpx

from sidecar.errors import (
    EngineConnectTimeout,
    EngineDied,
    EngineNotReady,
    EngineSilent,
    EngineUnreachable,
    EngineUntrusted,
    LegFailed,
    NoResources,
)
from sidecar.plan import Leg, Role
from sidecar.transport import OWN_FAULTS


def silent(leg: Leg) -> LegFailed:
    """A question to a bootstrap server that gets no answer is one that could not be asked (502)."""
    silent = EngineSilent(leg)
    return EngineUnreachable(leg, silent.message) if leg.role is Role.LOOKUP else silent


def mapped(error: BaseException, leg: Leg) -> BaseException:
    """An httpx exception as the tree names it; everything else as it is."""
    match error:
        case httpx.ConnectTimeout() | httpx.ConnectError():
            return unconnected(error.__cause__, leg, late=isinstance(error, httpx.ConnectTimeout))
        case httpx.RemoteProtocolError() if str(error).startswith("response head over"):
            return EngineDied(leg, f"the {leg.role} engine's {error} (--max-response-header-bytes)")
        case httpx.RemoteProtocolError() if "closed the connection" not in str(error):
            return EngineDied(
                leg, f"the {leg.role} engine answered what is not HTTP/1.1, or is not safe to read"
            )
        case httpx.HTTPError() | httpx.StreamError():
            return EngineDied(leg)
        case _:
            return error


def unconnected(cause: BaseException | None, leg: Leg, *, late: bool) -> LegFailed:
    """Why there is no connection. The decoder is the local engine: it is starting, or busy.

    late: the time for it ran out.
    """
    if getattr(cause, "errno", None) in OWN_FAULTS:
        return NoResources(leg)
    if isinstance(cause, ssl.SSLError):
        untrusted = EngineUntrusted(leg)
        return EngineUntrusted(leg, f"{untrusted.message}: {_tls_reason(cause)}")
    if leg.role is not Role.DECODE:
        return EngineUnreachable(leg)
    return EngineConnectTimeout(leg) if late else EngineNotReady(leg)


def _tls_reason(error: ssl.SSLError) -> str:
    """OpenSSL's words, without its source lines; of a certificate, what is wrong with it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({error.verify_message})"
    return (error.reason or "handshake failed").replace("_", " ").lower()
