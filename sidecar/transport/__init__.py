"""HTTP/1.1 to the engines: an httpx transport on httptools and asyncio protocols.

Rule: only what is named here is used elsewhere; what the network does surfaces as httpx's own errors.
"""

from sidecar.transport.body import BodyStream
from sidecar.transport.client import Transport
from sidecar.transport.messages import Place, RawRequest, raw_headers
from sidecar.transport.resolver import OWN_FAULTS, TLS, Resolver

__all__ = ["OWN_FAULTS", "TLS", "BodyStream", "Place", "RawRequest", "Resolver", "Transport", "raw_headers"]
