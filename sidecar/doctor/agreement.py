"""Compares peers: what has to be equal for blocks to be found and to be right.

Rule: pure; one finding per thing, that names who has what. A peer that does not tell is left out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sidecar.doctor.findings import Finding, Severity
from sidecar.doctor.told import Told

# The one check of what was counted instead of told.
_MEASURED = "KV per token"
# Clocks are compared by a header of whole seconds.
_SKEW_S = 5.0


@dataclass(frozen=True, slots=True)
class Rule:
    """value: what is compared, as a text; None where not told. stops: where it differs nothing moves."""

    check: str
    severity: Severity
    value: Callable[[Told], str | None]
    why: str
    change: str
    stops: bool = False


def _version(told: Told) -> str | None:
    return told.facts.version


def _model(told: Told) -> str | None:
    return told.facts.model


def _revision(told: Told) -> str | None:
    return told.short_revision


def _text(told: Told) -> str | None:
    return repr(told.alone.text) if told.alone and told.alone.text else None


def _prompt(told: Told) -> str | None:
    tokens = told.alone.prompt_tokens if told.alone else None
    return None if tokens is None else f"{tokens} tokens"


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
        stops=True,
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
        stops=True,
    ),
    Rule(
        "hash algorithm",
        Severity.ERROR,
        _algorithm,
        "equal blocks have different hashes: every look-up misses",
        "Give all peers one --prefix-caching-hash-algo.",
        stops=True,
    ),
    Rule(
        "KV dtype",
        Severity.ERROR,
        _cache_dtype,
        "a block has another size in bytes, and the handshake refuses it",
        "Give all peers one --kv-cache-dtype.",
        stops=True,
    ),
    Rule(
        "dtype",
        Severity.ERROR,
        _dtype,
        "what a model computes with is the KV's type too, and the handshake refuses another one",
        "Give all peers one --dtype.",
        stops=True,
    ),
    Rule(
        "parallel",
        Severity.ERROR,
        _parallel,
        "each rank's part of a block has another size, and the handshake refuses it",
        "Give all peers one --tensor-parallel-size and one --pipeline-parallel-size.",
        stops=True,
    ),
    Rule(
        _MEASURED,
        Severity.ERROR,
        _token_bytes,
        "their tiers keep different amounts of one prompt: dtype, layout or parallel size differs",
        "Compare --kv-cache-dtype, --dtype, --tensor-parallel-size and the tiers' block_size.",
        stops=True,
    ),
    Rule(
        "configuration",
        Severity.NOTE,
        _configuration,
        "vLLM's own hash of its configuration differs: model, dtype, quantization or backend",
        "",
    ),
)


def compared(all_told: Sequence[Told], moved: Sequence[tuple[str, str]] = ()) -> Iterator[Finding]:
    """What differs between those that can be reached. What explains another thing comes before it.

    moved: pairs between which blocks moved, whatever differs.
    """
    reached = [told for told in all_told if told.failure is None]
    for rule in RULES:
        groups: dict[str, list[str]] = {}
        for told in reached:
            if (value := rule.value(told)) is not None:
                groups.setdefault(value, []).append(told.name)
        if len(groups) > 1:
            yield _differs(rule, groups, moved)
    yield from _clocks(reached)
    yield from _addresses(all_told)


def _differs(rule: Rule, groups: Mapping[str, Sequence[str]], moved: Sequence[tuple[str, str]]) -> Finding:
    """One finding for all; where blocks moved all the same, it does not say that none can."""
    who = "; ".join(f"{', '.join(names)}: {value}" for value, names in groups.items())
    about = tuple(name for names in groups.values() for name in names)
    of = {name: value for value, names in groups.items() for name in names}
    across = [pair for pair in moved if set(pair) <= of.keys() and of[pair[0]] != of[pair[1]]]
    if not rule.stops or not across:
        return Finding(rule.severity, rule.check, about, "differs", f"{who}; {rule.why}", rule.change)
    yet = "; ".join((who, f"yet blocks moved from {across[0][0]} to {across[0][1]}"))
    if rule.check == _MEASURED:
        says = f"{yet}: something else was stored meanwhile, most likely"
        return Finding(Severity.NOTE, rule.check, about, "differs", says)
    return Finding(
        rule.severity, rule.check, about, "differs", f"{yet}: what moved may be wrong", rule.change
    )


def differing(first: Told, second: Told) -> tuple[Sequence[str], Sequence[str]]:
    """The checks in which these two differ: that stop all pulls, and others that are worth a warning."""
    differ = [
        rule for rule in RULES if None not in (ours := _both(rule, first, second)) and len(set(ours)) > 1
    ]
    return (
        [rule.check for rule in differ if rule.stops],
        [rule.check for rule in differ if not rule.stops and rule.severity >= Severity.WARNING],
    )


def _both(rule: Rule, first: Told, second: Told) -> tuple[str | None, str | None]:
    return rule.value(first), rule.value(second)


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
