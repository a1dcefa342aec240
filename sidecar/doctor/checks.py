"""Judges one engine by what it told: each thing that makes its pulls, or pulls from it, move nothing.

Rule: pure; a function per check, in the order of the report. What it did not tell is `not told`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from sidecar.doctor.addresses import address
from sidecar.doctor.findings import Finding, Severity, fine, untold
from sidecar.doctor.fronts import setting
from sidecar.doctor.keeping import DEV_MODE, kv_bytes, prompt_only, tier
from sidecar.doctor.told import Told

# The version whose names and behaviour this package was read from and run with (contract section 13).
_KNOWN_VERSION = (0, 32)
_RELEASE = re.compile(r"v?([0-9]{1,6})\.([0-9]{1,6})(?![0-9])")
# What setuptools-scm makes of a checkout without tags, as shallow clones have none.
_UNTAGGED = re.compile(r"v?0\.[01](?:\.[0-9]+)?\.dev")
# A clock that is so much off shows in leases of blocks, certificates and traces; `Date` has whole seconds.
_SKEW_S = 5.0
_USAGE = "Ask the engine itself, or correct what changes its answers on the way."
_REDIRECTED = (
    "Correct the URL: no redirect is followed. Mostly an ingress wants https://; else give the engine's own."
)
_DETAILS = "Start the engine with --enable-prompt-tokens-details."


def examined(told: Told) -> Iterator[Finding]:
    """Every check of one engine; one finding alone where it cannot be reached."""
    if told.failure:
        yield Finding(
            Severity.ERROR,
            "reachable",
            (told.name,),
            "no",
            f"no answer: {told.failure}",
            "Start it, or correct the URL; see that a NetworkPolicy lets this place reach it; for a "
            "certificate of one's own, --ca-file or -k; for one that is slow, --timeout.",
        )
        return
    for check in CHECKS:
        yield check(told)


def _reachable(told: Told) -> Finding:
    rtt = "yes" if told.rtt_ms is None else f"yes, {told.rtt_ms:.1f} ms"
    return fine("reachable", told.name, rtt)


def _ready(told: Told) -> Finding:
    if told.unready is None:
        return fine("ready", told.name, "yes")
    says = f"is not ready: {told.unready}"
    change = "Wait until its model is loaded; look at the engine's log if that takes longer than usual."
    if told.redirects:
        says = f"redirects instead of answering: {told.unready}"
        change = _REDIRECTED
    return Finding(Severity.ERROR, "ready", (told.name,), "no", says, change)


def _version(told: Told) -> Finding:
    version = told.facts.version or (told.fingerprint.version if told.fingerprint else None)
    if version is None:
        return untold("version", told.name, "no answer of /version, and none in its fingerprint")
    return fine("version", told.name, version)


def _model(told: Told) -> Finding:
    if told.facts.model is None:
        return untold("model", told.name, "no model in /v1/models")
    return fine("model", told.name, told.facts.model)


def _revision(told: Told) -> Finding:
    if told.revision is None:
        why = "none is pinned (--revision)" if told.configuration else DEV_MODE
        return untold("revision", told.name, f"{why}; the texts of peers are compared instead")
    return fine("revision", told.name, told.revision[:12])


def _block_size(told: Told) -> Finding:
    if told.facts.block_tokens is None:
        return untold("block size", told.name, "no vllm:cache_config_info in /metrics")
    return fine("block size", told.name, f"{told.facts.block_tokens} tokens")


def _prefix_caching(told: Told) -> Finding:
    label = told.facts.cache.get("enable_prefix_caching")
    if label is None:
        return untold("prefix caching", told.name, "no vllm:cache_config_info in /metrics")
    if label == "False":
        says = "keeps no prefixes: every prompt is computed, and peers find nothing"
        change = "Start the engine without --no-enable-prefix-caching."
        return Finding(Severity.ERROR, "prefix caching", (told.name,), "off", says, change)
    return fine("prefix caching", told.name, "on")


def _kv_dtype(told: Told) -> Finding:
    label = told.facts.cache.get("cache_dtype")
    configured = told.configuration
    if label is None:
        return untold("KV dtype", told.name, "no vllm:cache_config_info in /metrics")
    if label == "auto" and configured and configured.dtype:
        return fine("KV dtype", told.name, f"auto: {configured.dtype}")
    return fine("KV dtype", told.name, label)


def _parallel(told: Told) -> Finding:
    if told.configuration and told.configuration.tensor:
        sizes = told.configuration.tensor, told.configuration.pipeline or 1
    elif told.fingerprint:
        sizes = told.fingerprint.tensor, told.fingerprint.pipeline
    else:
        why = "no system_fingerprint in its answer (--fingerprint-mode); " + DEV_MODE
        return untold("parallel", told.name, why)
    return fine("parallel", told.name, f"TP {sizes[0]}" + (f", PP {sizes[1]}" if sizes[1] > 1 else ""))


def _data_parallel(told: Told) -> Finding:
    """Rank r listens at the P2P port + r (v1/kv_offload/tiering/p2p/manager.py, vLLM 0.32)."""
    ranks = told.families.ranks
    closed = [port.endpoint.netloc for port in told.ports[1:] if not port.open]
    if told.ports and told.ports[0].open and closed:
        says = f"{ranks} ranks, and no P2P tier at {', '.join(closed)}: rank r has it at the base port + r"
        change = "Leave as many ports free above the P2P port as there are ranks, open in every policy."
        return Finding(Severity.ERROR, "DP ports", (told.name,), f"{len(closed)} shut", says, change)
    served = setting(told, "data-parallel-size")
    if served is not None and served != ranks:
        says = f"the engine has {ranks} ranks, its sidecar serves {served}: pulls go to a wrong rank's port"
        change = f"Give the sidecar --data-parallel-size={ranks}."
        return Finding(Severity.ERROR, "DP ports", (told.name,), f"{ranks} ≠ {served}", says, change)
    return fine("DP ports", told.name, f"{ranks} rank" + ("s" if ranks > 1 else ""))


def _answers(told: Told) -> Finding:
    if told.alone or told.unready:
        return fine("answers", told.name, "yes" if told.alone else "not asked")
    says = f"gives no completion: {told.alone_failure}"
    change = "Look at the engine's log; a gateway may want a credential (-H), a slow engine --timeout."
    return Finding(Severity.ERROR, "answers", (told.name,), "no", says, change)


def _details(told: Told) -> Finding:
    check = "token details"
    if told.alone is None:
        return untold(check, told.name, "it gave no completion to see it by")
    if told.alone.prompt_tokens is None:
        says = (
            "its usage tells no count of prompt tokens that can be: what it tells of cached ones is no proof"
        )
        return Finding(Severity.WARNING, check, (told.name,), "unusable", says, _USAGE)
    if told.alone.details:
        return fine(check, told.name, "on")
    says = "does not report usage.prompt_tokens_details: no answer tells what it took from a cache"
    return Finding(Severity.WARNING, check, (told.name,), "off", says, _DETAILS)


def _clock(told: Told) -> Finding:
    if told.ahead_s is None:
        return untold("clock", told.name, "no Date header in its answers")
    if abs(told.ahead_s) <= _SKEW_S:
        return fine("clock", told.name, "as here")
    way = "ahead" if told.ahead_s > 0 else "behind"
    says = f"its clock is {abs(told.ahead_s):.0f} s {way} of this machine's: leases, traces, certificates"
    change = "Keep the nodes' clocks with NTP or chrony."
    return Finding(Severity.WARNING, "clock", (told.name,), f"{told.ahead_s:+.0f} s", says, change)


def _names(told: Told) -> Finding:
    check, version = "parameter names", told.facts.version or ""
    known = _release(version)
    if told.families.old_names or (known and known < _KNOWN_VERSION):
        why = (
            f"is vLLM {version}"
            if known and known < _KNOWN_VERSION
            else "names its counters as older versions do"
        )
        says = (
            f"{why}: before 0.32 the keys of kv_transfer_params and of tiers were other ones, and are ignored"
        )
        change = "Run engines and sidecars of one age: vLLM 0.32 or later."
        return Finding(Severity.WARNING, check, (told.name,), "old", says, change)
    if known is None:
        built = f"{version} is a build of its own, which says nothing of its age"
        return untold(check, told.name, built if version else "the version is not told")
    return fine(check, told.name, "of 0.32" if known == _KNOWN_VERSION else "0.32 or later")


def _release(version: str) -> tuple[int, int] | None:
    """Its first two numbers; None for what names no release, as a build without tags: 0.1.dev10+g5a3b."""
    found = _RELEASE.match(version)
    return (int(found[1]), int(found[2])) if found and not _UNTAGGED.match(version) else None


CHECKS: tuple[Callable[[Told], Finding], ...] = (
    _reachable,
    _ready,
    _answers,
    _version,
    _names,
    _model,
    _revision,
    _block_size,
    _prefix_caching,
    _kv_dtype,
    _parallel,
    kv_bytes,
    address,
    _data_parallel,
    prompt_only,
    _details,
    tier,
    _clock,
)
