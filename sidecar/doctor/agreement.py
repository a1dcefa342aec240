"""Compares peers: what has to be equal for blocks to be found and to be right.

Rule: pure; one finding per thing, that names who has what. A peer that does not tell is left out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sidecar.doctor.findings import Finding, Severity
from sidecar.doctor.told import Told

# Clocks are compared by a header of whole seconds.
_SKEW_S = 5.0


@dataclass(frozen=True, slots=True)
class Rule:
    """value: what is compared, as a text; None where it is not told."""

    check: str
    severity: Severity
    value: Callable[[Told], str | None]
    why: str
    change: str


def _version(told: Told) -> str | None:
    return told.facts.version


def _model(told: Told) -> str | None:
    return told.facts.model


def _revision(told: Told) -> str | None:
    return told.configuration.revision if told.configuration else None


def _text(told: Told) -> str | None:
    return repr(told.alone.text) if told.alone and told.alone.text else None


def _prompt(told: Told) -> str | None:
    return f"{told.alone.prompt_tokens} tokens" if told.alone else None


def _block(told: Told) -> str | None:
    return told.facts.cache.get("block_size")


def _algorithm(told: Told) -> str | None:
    return told.facts.cache.get("prefix_caching_hash_algo")


def _cache_dtype(told: Told) -> str | None:
    return told.facts.cache.get("cache_dtype")


def _dtype(told: Told) -> str | None:
    return told.configuration.dtype if told.configuration else None


def _parallel(told: Told) -> str | None:
    configured, seen = told.configuration, told.fingerprint
    if configured and configured.tensor:
        return f"TP {configured.tensor}, PP {configured.pipeline or 1}"
    return f"TP {seen.tensor}, PP {seen.pipeline}" if seen else None


def _token_bytes(told: Told) -> str | None:
    return f"{told.kv_token_bytes:,.0f} bytes" if told.kv_token_bytes else None


def _configuration(told: Told) -> str | None:
    return told.fingerprint.configuration if told.fingerprint else None


RULES = (
    Rule(
        "version",
        Severity.WARNING,
        _version,
        "the P2P protocol and the names of parameters change between versions",
        "Run one version on all peers.",
    ),
    Rule(
        "model",
        Severity.ERROR,
        _model,
        "the KV of one model is nothing to another, and its peers refuse it",
        "Compare pods of one model only, served under one name.",
    ),
    Rule(
        "revision",
        Severity.ERROR,
        _revision,
        "the handshake does not compare revisions: KV of other weights would be taken as right",
        "Pin one --revision on all peers.",
    ),
    Rule(
        "text",
        Severity.WARNING,
        _text,
        "one prompt gives different texts at temperature 0: other weights, or other numerics",
        "Compare --revision, --quantization and the hardware; with other weights do not pull at all.",
    ),
    Rule(
        "tokenizer",
        Severity.WARNING,
        _prompt,
        "one prompt has different lengths: other tokenizers or templates, so other blocks",
        "Compare --tokenizer and its revision.",
    ),
    Rule(
        "block size",
        Severity.ERROR,
        _block,
        "blocks of other lengths have other hashes, and the handshake refuses them",
        "Give all peers one --block-size, and the endpoint picker the same blockSize.",
    ),
    Rule(
        "hash algorithm",
        Severity.ERROR,
        _algorithm,
        "equal blocks have different hashes: every look-up misses",
        "Give all peers one --prefix-caching-hash-algo.",
    ),
    Rule(
        "KV dtype",
        Severity.ERROR,
        _cache_dtype,
        "a block has another size in bytes, and the handshake refuses it",
        "Give all peers one --kv-cache-dtype.",
    ),
    Rule(
        "dtype",
        Severity.ERROR,
        _dtype,
        "what a model computes with is the KV's type too, and the handshake refuses another one",
        "Give all peers one --dtype.",
    ),
    Rule(
        "parallel",
        Severity.ERROR,
        _parallel,
        "each rank's part of a block has another size, and the handshake refuses it",
        "Give all peers one --tensor-parallel-size and one --pipeline-parallel-size.",
    ),
    Rule(
        "KV per token",
        Severity.ERROR,
        _token_bytes,
        "their tiers keep different amounts of one prompt: dtype, layout or parallel size differs",
        "Compare --kv-cache-dtype, --dtype, --tensor-parallel-size and the tiers' block_size.",
    ),
    Rule(
        "configuration",
        Severity.NOTE,
        _configuration,
        "vLLM's own hash of its configuration differs: model, dtype, quantization or backend",
        "",
    ),
)


def compared(all_told: Sequence[Told]) -> Iterator[Finding]:
    """What differs between those that can be reached. What explains another thing comes before it."""
    reached = [told for told in all_told if told.failure is None]
    for rule in RULES:
        groups: dict[str, list[str]] = {}
        for told in reached:
            if (value := rule.value(told)) is not None:
                groups.setdefault(value, []).append(told.name)
        if len(groups) > 1:
            who = "; ".join(f"{', '.join(names)}: {value}" for value, names in groups.items())
            about = tuple(name for names in groups.values() for name in names)
            says = f"{who}; {rule.why}"
            yield Finding(rule.severity, rule.check, about, "differs", says, rule.change)
    yield from _clocks(reached)
    yield from _addresses(all_told)


def differing(findings: Sequence[Finding], first: str, second: str) -> Sequence[str]:
    """The checks in which these two peers differ so that nothing can move between them."""
    return [
        finding.check
        for finding in findings
        if finding.value == "differs"
        and finding.severity is Severity.ERROR
        and {first, second} <= set(finding.about)
    ]


def _clocks(reached: Sequence[Told]) -> Iterator[Finding]:
    clocks = {told.name: told.ahead_s for told in reached if told.ahead_s is not None}
    if not clocks or max(clocks.values()) - min(clocks.values()) <= _SKEW_S:
        return
    apart_s = max(clocks.values()) - min(clocks.values())
    ends = min(clocks, key=lambda name: clocks[name]), max(clocks, key=lambda name: clocks[name])
    says = f"{ends[1]}'s clock is {apart_s:.0f} s ahead of {ends[0]}'s: leases of blocks end too soon"
    change = "Keep the nodes' clocks with NTP or chrony."
    yield Finding(Severity.WARNING, "clock", ends, "differs", says, change)


def _addresses(all_told: Sequence[Told]) -> Iterator[Finding]:
    """Two peers at one P2P address: one of them is not where the diagnosis looks."""
    owners: dict[str, list[str]] = {}
    for told in all_told:
        owners.setdefault(told.peer.p2p.netloc, []).append(told.name)
    for netloc, names in owners.items():
        if len(names) > 1:
            says = f"share the P2P address {netloc}: whose port that is is not told"
            change = (
                f"Say where each listens: --p2p {names[1]}=HOST:PORT (ranks of one pod: base port + rank)."
            )
            yield Finding(Severity.ERROR, "P2P address", tuple(names), "shared", says, change)
