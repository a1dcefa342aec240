"""Reads what engines and sidecars tell, in their own shapes, into the shapes of `told`.

Rule: pure; versions differ, so what is absent or of another kind is None. Names and shapes are vLLM's (0.32:
entrypoints/serve/utils/fingerprint.py, entrypoints/serve/dev/server_info, v1/kv_offload) and our own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

from sidecar.doctor.told import Configuration, Families, Fingerprint, SidecarTold, Source, Tier
from sidecar.remote.texts import shown

_FINGERPRINT = re.compile(
    r"vllm-(?P<version>[^-]+)(?:-tp(?P<tensor>[0-9]{1,6}))?(?:-pp(?P<pipeline>[0-9]{1,6}))?"
    r"(?:-dp(?P<data>[0-9]{1,6}))?"
    r"(?P<experts>-ep)?-(?P<configuration>[0-9a-f]{8}|nohash)"
)
_ENGINE = re.compile(r'^vllm:cache_config_info\{[^}]*\bengine="([^"]*)"', re.MULTILINE)
_PREFIX = "llm_d_disagg_sidecar_"
_TIERING, _NIXL = "vllm:kv_offload_tiering_", "vllm:nixl_"
# The offloading counters' names before vLLM 0.32 counted chunks (contract section 13).
_OLD = "vllm:kv_offload_tiering_block_queries"


# Ranks of one address: each has a port that is tried.
MOST_RANKS = 64
# Names and values that are shown, in a table or in a sentence: revisions have 40, hosts more.
_MOST_CHARACTERS = 120
# Bytes of a tier, a port, a size: what JSON has beyond this is no number of theirs.
_MOST = 2**53


def fingerprint(text: Any) -> Fingerprint | None:
    """Of an answer; None for one that is hidden or made up (`--fingerprint-mode`)."""
    found = _FINGERPRINT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    sizes = {name: int(found[name] or 1) for name in ("tensor", "pipeline", "data")}
    return Fingerprint(
        shown(found["version"], _MOST_CHARACTERS),
        **sizes,
        experts=bool(found["experts"]),
        configuration=found["configuration"],
    )


def families(metrics: str) -> Families:
    """Of an engine's text of metrics; a family without samples has its `# TYPE` line."""
    return Families(
        tiering=_TIERING in metrics,
        nixl=_NIXL in metrics,
        ranks=min(max(1, len(set(_ENGINE.findall(metrics)))), MOST_RANKS),
        old_names=_OLD in metrics,
        untold=not metrics.strip(),
    )


def total(metrics: str, name: str, label: str = "") -> float | None:
    """The sum of a series' samples whose labels contain `label`; None where there are none."""
    values = [value for labels, value in samples(metrics, name) if label in labels]
    return sum(values) if values else None


def samples(metrics: str, name: str) -> Iterator[tuple[str, float]]:
    """Labels, as they are written, and values of one series' samples."""
    for labels, text in re.findall(rf"^{re.escape(name)}(?:\{{(.*)\}})? (\S+)$", metrics, re.MULTILINE):
        try:
            value = float(text)
        except ValueError:
            continue
        if 0 <= value < inf:  # nothing that is read here is anything else
            yield labels, value


def configuration(content: Any) -> Configuration | None:
    """Of `/server_info?config_format=json`; None where it is something else."""
    told = _at(content, "vllm_config")
    if not isinstance(told, dict):
        return None
    connectors = list(_connectors(told.get("kv_transfer_config")))
    extra = next((found for name, found in connectors if "Offloading" in name), {})
    return Configuration(
        revision=_text(_at(told, "model_config", "revision")),
        dtype=_dtype(_at(told, "model_config", "dtype")),
        tensor=_whole(_at(told, "parallel_config", "tensor_parallel_size")),
        pipeline=_whole(_at(told, "parallel_config", "pipeline_parallel_size")),
        connectors=tuple(name for name, _ in connectors),
        tier=_tier(extra),
        side_host=_text(_at(content, "vllm_env", "VLLM_P2P_SIDE_CHANNEL_HOST")),
        tier_bytes=_whole(extra.get("cpu_bytes_to_use")),
        prompt_only=_prompt_only(extra),
        events=_at(told, "kv_events_config", "enable_kv_cache_events") is True,
    )


def _connectors(config: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each connector's name and extra configuration; MultiConnector's members stand for it."""
    if not isinstance(config, dict) or not isinstance(config.get("kv_connector"), str):
        return
    extra = config.get("kv_connector_extra_config")
    extra = extra if isinstance(extra, dict) else {}
    members = extra.get("connectors")
    if config["kv_connector"] == "MultiConnector" and isinstance(members, list):
        for member in members:
            yield from _connectors(member)
        return
    yield _shown(config["kv_connector"]), extra


def _tier(extra: Mapping[str, Any]) -> Tier | None:
    tiers = extra.get("secondary_tiers")
    for tier in tiers if isinstance(tiers, list) else ():
        if _at(tier, "type") == "p2p":
            return Tier(_text(tier.get("host")), _whole(tier.get("port")))
    return None


def _prompt_only(extra: Mapping[str, Any]) -> bool | None:
    """vLLM's default is true (v1/kv_offload/base.py, 0.32). What is neither true nor false is not judged."""
    told = extra.get("offload_prompt_only", True) if extra else None
    return told if isinstance(told, bool) else None


def settings(hello: Any) -> Mapping[str, str] | None:
    """A sidecar's settings by name, from the first event of `/debug/events`."""
    config = _at(hello, "config")
    if not isinstance(config, list):
        return None
    named = [one for one in config if isinstance(one, dict) and isinstance(one.get("name"), str)]
    return {_shown(one["name"]).lstrip("-"): _shown(one.get("value")) for one in named}


def sources(hello: Any) -> tuple[Source, ...]:
    """The sources that a sidecar knows, from the same."""
    told = _at(hello, "sources")
    rows = [row for row in told if isinstance(row, dict)] if isinstance(told, list) else []
    return tuple(
        Source(_shown(row.get("source")), _shown(row.get("guard")), row.get("silent") is True) for row in rows
    )


def sidecar_told(metrics: str, hello: Any) -> SidecarTold:
    """Of a sidecar's own metrics, and of that event where it has debug endpoints."""
    skipped = samples(metrics, f"{_PREFIX}pulls_skipped_total")
    return SidecarTold(
        settings=settings(hello),
        sources=sources(hello),
        bad_sources=total(metrics, f"{_PREFIX}guard_sources", 'state="bad"'),
        silent_sources=total(metrics, f"{_PREFIX}silent_sources"),
        rescues=total(metrics, f"{_PREFIX}pull_rescues_total"),
        skipped={labels.partition('="')[2].rstrip('"'): value for labels, value in skipped if value},
    )


def directed(metrics: str) -> float | None:
    """Pulls that a sidecar has directed, settled ones, whatever became of them."""
    return total(metrics, f"{_PREFIX}pulls_total")


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _text(value: Any) -> str | None:
    return shown(value, _MOST_CHARACTERS) if isinstance(value, str) and value else None


def _shown(value: Any) -> str:
    """Of a text or a number; anything else is nothing."""
    return shown(str(value), _MOST_CHARACTERS) if isinstance(value, str | int | float) else ""


def _dtype(value: Any) -> str | None:
    """As vLLM writes it, with or without torch's name before it."""
    text = _text(value)
    return text.removeprefix("torch.") if text else None


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        return None
    return int(value) if value == int(value) else None
