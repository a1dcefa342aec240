"""What peers would tell, made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sidecar.doctor.told import Alone, Families, Fingerprint, Peer, Port, Told
from sidecar.endpoint import Endpoint
from sidecar.remote.facts import Facts
from sidecar.remote.place import Place

CACHE = {
    "block_size": "32",
    "cache_dtype": "auto",
    "enable_prefix_caching": "True",
    "num_gpu_blocks": "512",
    "prefix_caching_hash_algo": "sha256",
}


def peer(name: str = "A", host: str = "10.0.0.1") -> Peer:
    """One at port 8000, with its P2P tier at 7777."""
    return Peer(name, Place("http", Endpoint(host, 8000)), Endpoint(host, 7777))


def told(name: str = "A", **other: Any) -> Told:
    """A healthy engine of its own address, but for what is said."""
    host = f"10.0.0.{ord(name) - 64}"
    healthy = Told(
        peer(name, host),
        rtt_ms=0.5,
        ahead_s=0.2,
        facts=Facts("m", "m", 8192, "0.32.0", cache=CACHE),
        families=Families(tiering=True),
        ports=(Port(Endpoint(host, 7777), 0.3),),
        alone=Alone(257, " a", True, 256 * 1024.0, 0.0, Fingerprint("0.32.0", configuration="54080b21")),
        answers_kept=True,
    )
    return replace(healthy, **other)
