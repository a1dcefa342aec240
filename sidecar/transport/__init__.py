"""HTTP/1.1 to the engines: an httpx transport on httptools and asyncio protocols.

Rule: from here only Transport and BodyStream are used; what the network does surfaces as httpx's own errors.
"""

from sidecar.transport.body import BodyStream
from sidecar.transport.client import Transport

__all__ = ["BodyStream", "Transport"]
