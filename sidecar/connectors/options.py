"""What the settings say to connectors: the options that a plan may read.

Rule: plain values with the flags' defaults; a connector reads its own and nothing else reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MoRIIO:
    """The `--moriio-…` flags of the same names, for `--moriio-write-mode`.

    Hosts (`local_pod_ip` too) are addresses, or names as long as no look-up has answered. Ports are the bases
    to which engines add their rank. dp_size_local: ranks within one pod; 0: there is one pod.
    """

    local_pod_ip: str | None = None
    decode_notify_port: int = 61005
    decode_handshake_port: int = 6301
    prefill_notify_port: int = 61005
    prefill_handshake_port: int = 6301
    tp_size: int = 1
    dp_size: int = 1
    dp_size_local: int = 0
    remote_hosts: tuple[str, ...] = ()
    decode_hosts: tuple[str, ...] = ()
    parallel_dispatch: bool = False
    parallel_decode_wait_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Options:
    """The ports are those of a prefiller's bootstrap server, one per protocol."""

    mooncake_bootstrap_port: int = 8998
    sglang_bootstrap_port: int = 8998
    moriio: MoRIIO = MoRIIO()
