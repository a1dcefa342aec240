"""Writes a diagnosis as one JSON object for scripts.

Rule: pure; every finding is in it, fine ones too. Fields are added, never renamed.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sidecar.doctor.diagnosis import Diagnosis
from sidecar.doctor.findings import Finding
from sidecar.doctor.gates import Gate
from sidecar.doctor.pulls import Pair, Pull
from sidecar.doctor.told import Told


def document(diagnosis: Diagnosis) -> dict[str, Any]:
    """Units are in the names; what is not told is null."""
    return {
        "worst": diagnosis.worst.word,
        "exit_code": diagnosis.exit_code,
        "prompt_tokens": diagnosis.prompt_tokens,
        "peers": [_peer(told) for told in diagnosis.told],
        "pairs": [_pair(pair) for pair in diagnosis.pairs],
        "pairs_left_out": diagnosis.left_out,
        "gates": [_gate(gate) for gate in diagnosis.gates],
        "findings": [_finding(finding) for finding in diagnosis.findings],
    }


def _peer(told: Told) -> dict[str, Any]:
    facts = told.facts
    return {
        "name": told.name,
        "url": told.peer.place.url,
        "kind": "sidecar" if facts.through_sidecar else "engine",
        "p2p": told.peer.p2p.netloc,
        "p2p_open": [port.open for port in told.ports],
        "failure": told.failure,
        "ready": told.failure is None and told.unready is None,
        "model": facts.model,
        "version": facts.version,
        "revision": told.revision,
        "block_tokens": facts.block_tokens,
        "cache": dict(facts.cache),
        "kv_token_bytes": told.kv_token_bytes,
        "rtt_ms": told.rtt_ms,
        "clock_ahead_s": told.ahead_s,
    }


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "source": pair.source,
        "consumer": pair.consumer,
        "verdict": "untried" if pair.became == "-" else str(pair.became),
        "why": pair.why,
        "bytes_per_s": pair.rate_bytes_s,
        "first": _pull(pair.first),
        "again": _pull(pair.again),
    }


def _pull(pull: Pull | None) -> dict[str, Any] | None:
    return asdict(pull) if pull else None


def _gate(gate: Gate) -> dict[str, Any]:
    return {**asdict(gate), "state": str(gate.state)}


def _finding(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "severity": finding.severity.word, "about": list(finding.about)}
