"""What a client may take of the server before its request is known.

Rule: values only; how long an answer takes is limited nowhere.
"""

from typing import NamedTuple


class ClientLimits(NamedTuple):
    """header_timeout_s: for a request's head to become complete once it has begun. header_bytes: how large it
    may be, request line and fields together. idle_s: how long a connection may wait for the next request.
    body_timeout_s: how long a client may be silent in the middle of a request's body.
    """

    # nginx's client_header_timeout. Gateways send heads in one piece, so only a slow-head attack or a dead
    # peer gets near it.
    header_timeout_s: float = 60.0
    # Room for a gateway's tracing fields.
    header_bytes: int = 65536
    # At least 300 s (contract section 9), and a little more: it must not be we who close a connection on
    # which a gateway with such a time-out is about to send.
    idle_s: float = 305.0
    # nginx's client_body_timeout: between two reads, not of the whole.
    body_timeout_s: float = 60.0


DEFAULT_LIMITS = ClientLimits()
