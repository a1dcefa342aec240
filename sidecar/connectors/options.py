"""What the settings say to connectors: the options that a plan may read.

Rule: plain values with the flags' defaults; a connector reads its own and nothing else reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """The ports are those of a prefiller's bootstrap server, one per protocol."""

    mooncake_bootstrap_port: int = 8998
    sglang_bootstrap_port: int = 8998
