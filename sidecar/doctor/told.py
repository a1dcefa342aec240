"""What was learned of one peer: a value where it told, None where it did not.

Rule: pure; plain values, gathered elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.endpoint import Endpoint
from sidecar.remote.facts import Facts
from sidecar.remote.place import Place

# A commit that some peer tells in short is the same one: no two of a repository share so many digits.
_COMMIT_DIGITS = 12
_COMMIT = re.compile(r"[0-9a-f]{12,40}")
# The hub's cache has a directory per commit (huggingface_hub, file_download.py); a longer path ends in dots.
_SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{12,40})(?:/|$|\.\.\.$)")


@dataclass(frozen=True, slots=True)
class Peer:
    """One that is examined. name: A, B, …. p2p: where its tier is. operators: its sidecar's metrics port.

    rank: among the peers of its host, by its port; its P2P port is counted up by it.
    """

    name: str
    place: Place
    p2p: Endpoint
    operators: Place | None = None
    rank: int = 0

    @property
    def has_certificate(self) -> bool:
        """Whether any of its ports shows one."""
        return "https" in (self.place.scheme, self.operators and self.operators.scheme)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """vLLM's `system_fingerprint`, taken apart. configuration: its hash of model, dtype, quantization, …."""

    version: str
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    experts: bool = False
    configuration: str = ""


@dataclass(frozen=True, slots=True)
class Tier:
    """The P2P tier in an engine's configuration. host: the address it binds, verbatim; None: the default."""

    host: str | None = None
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """What `/server_info` tells, which vLLM serves with VLLM_SERVER_DEV_MODE=1 only.

    side_host: where a P2P tier without `host` binds. tier_bytes: of the CPU tier. events: KV events are
    published.
    """

    revision: str | None = None
    dtype: str | None = None
    tensor: int | None = None
    pipeline: int | None = None
    connectors: tuple[str, ...] = ()
    tier: Tier | None = None
    side_host: str | None = None
    tier_bytes: int | None = None
    prompt_only: bool | None = None
    events: bool | None = None


@dataclass(frozen=True, slots=True)
class Families:
    """What the names in `/metrics` tell. tiering: the offloading connector with tiers. nixl: NIXL's.

    ranks: data-parallel engines. old_names: counters are named as before vLLM 0.32. untold: there were none.
    """

    tiering: bool = False
    nixl: bool = False
    ranks: int = 1
    old_names: bool = False
    untold: bool = False


@dataclass(frozen=True, slots=True)
class Port:
    """One rank's P2P endpoint, tried from here. took_ms: to connect; None where it was refused.

    loopback: nothing accepts there, but 127.0.0.1 of this same machine does, at the same port.
    """

    endpoint: Endpoint
    took_ms: float | None
    why: str = ""
    loopback: bool = False

    @property
    def open(self) -> bool:
        """Whether it accepted a connection."""
        return self.took_ms is not None


@dataclass(frozen=True, slots=True)
class Alone:
    """The answer to one prompt that every peer was asked without a directive, at temperature 0.

    prompt_tokens: None where usage tells none that can be. details: whether usage tells of cached tokens.
    stored_bytes: that its tier took in meanwhile. pulled_bytes: that it read from peers meanwhile, which is
    nothing unless others direct pulls. faults: what of its counters cannot be used.
    """

    prompt_tokens: int | None
    text: str
    details: bool
    stored_bytes: float | None = None
    pulled_bytes: float | None = None
    fingerprint: Fingerprint | None = None
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A source that a sidecar knows. guard: off, unknown, accepts or refuses. silent: gives nothing."""

    p2p: str
    guard: str
    silent: bool


@dataclass(frozen=True, slots=True)
class SidecarTold:
    """What a sidecar's metrics port told. settings: of `--debug-endpoints`, by name; None without them.

    bad_sources, silent_sources, rescues: from its metrics. skipped: pulls left out, by reason.
    """

    settings: Mapping[str, str] | None = None
    sources: tuple[Source, ...] = ()
    bad_sources: float | None = None
    silent_sources: float | None = None
    rescues: float | None = None
    skipped: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Told:
    """Everything of one peer. failure: why nothing else is known. unready: why it is not ready; redirects:
    because its URL is another's.

    rtt_ms: of an exchange over HTTP from here. ahead_s: its clock's before ours, within a second.
    operators_failure: why its sidecar's metrics port told nothing. answers_kept: whether its tier keeps
    what it answers.
    """

    peer: Peer
    failure: str | None = None
    unready: str | None = None
    redirects: bool = False
    rtt_ms: float | None = None
    ahead_s: float | None = None
    facts: Facts = field(default_factory=Facts)
    families: Families = field(default_factory=Families)
    configuration: Configuration | None = None
    ports: tuple[Port, ...] = ()
    sidecar: SidecarTold | None = None
    operators_failure: str | None = None
    alone: Alone | None = None
    alone_failure: str | None = None
    answers_kept: bool | None = None

    @property
    def name(self) -> str:
        """Of the peer."""
        return self.peer.name

    @property
    def fingerprint(self) -> Fingerprint | None:
        """Of its answer."""
        return self.alone.fingerprint if self.alone else None

    @property
    def revision(self) -> str | None:
        """Of the snapshot that was loaded, a commit; else as configured, a commit or a name."""
        at = _SNAPSHOT.search(self.facts.root or "")
        if at:
            return at[1]
        return self.configuration.revision if self.configuration else None

    @property
    def short_revision(self) -> str | None:
        """The same as it is compared: of a commit its first digits, a name whole."""
        revision = self.revision
        return revision[:_COMMIT_DIGITS] if revision and _COMMIT.fullmatch(revision) else revision

    @property
    def kv_token_bytes(self) -> float | None:
        """Bytes of KV per token that its tier keeps, measured on one prompt; None where not counted."""
        block = self.facts.block_tokens
        if self.alone is None or not self.alone.stored_bytes or not self.alone.prompt_tokens or not block:
            return None
        whole_tokens = self.alone.prompt_tokens // block * block
        return self.alone.stored_bytes / whole_tokens if whole_tokens else None
