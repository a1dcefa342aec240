"""Judges the sidecar in front of an engine: its connector, its P2P port, its guard, what it left out.

Rule: pure. A sidecar tells these on its metrics port; without that they are not told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sidecar.doctor.findings import Finding, Severity, fine, untold
from sidecar.doctor.told import SidecarTold, Told

# A sidecar's connector -> what of the engine's connectors it needs: the P2P tier, NIXL.
_NEEDS = {"offloading": (True, False), "nixlv2": (False, True)}
# No port and no count of ranks has more digits.
_NUMBER = re.compile(r"[0-9]{1,5}", re.ASCII)
_WHERE = "needs the sidecar's metrics port (--metrics-port, --metrics), with --debug-endpoints"


def fronted(told: Told) -> Iterator[Finding]:
    """The checks of the sidecar; none for an engine, one for what is neither."""
    if told.failure:
        return
    yield _connectors(told)
    if not told.facts.through_sidecar:
        return
    settings = told.sidecar.settings if told.sidecar else None
    if told.sidecar is None:
        why = told.operators_failure or "no metrics port was named (--metrics-port, --metrics)"
        yield untold("guard", told.name, f"the guard's state: {why}")
        return
    yield _guard(told, told.sidecar)
    if settings is None:
        yield untold("settings", told.name, f"the sidecar's settings: {_WHERE}")
    elif directed_port(told, told) not in (None, told.peer.p2p.port):
        yield _port(told, settings.get("p2p-connector-port", ""))


def directed_port(consumer: Told, source: Told) -> int | None:
    """The P2P port to which this consumer's sidecar directs a pull from a source; None: not told.

    Contract section 4: the port of its settings, and above it the rank: how far the source's own port is
    above the first of the consumer's, where the sidecar has so many ranks.
    """
    base = setting(consumer, "p2p-connector-port")
    if base is None:
        return None
    first = setting(consumer, "port")
    rank = source.peer.place.endpoint.port - first if first is not None else source.peer.rank
    return base + (rank if 0 <= rank < (setting(consumer, "data-parallel-size") or 1) else 0)


def setting(told: Told, name: str) -> int | None:
    """A setting of a sidecar that is a number of a port or of ranks; None where it is not told."""
    text = (told.sidecar.settings or {}).get(name, "") if told.sidecar else ""
    return int(text) if _NUMBER.fullmatch(text) else None


def engine_connectors(told: Told) -> tuple[str, ...]:
    """What the engine has: by its configuration, else by the names of its metrics."""
    if told.configuration and told.configuration.connectors:
        return told.configuration.connectors
    named = {"OffloadingConnector": told.families.tiering, "NixlConnector": told.families.nixl}
    return tuple(name for name, there in named.items() if there)


def _connectors(told: Told) -> Finding:
    check, engine = "connector", ", ".join(engine_connectors(told)) or "none"
    settings = told.sidecar.settings if told.sidecar else None
    ours = settings.get("kv-connector", "") if settings else ""
    if told.families.untold:
        return untold(
            check, told.name, f"the engine's connector: it has no /metrics; by its configuration: {engine}"
        )
    if not told.families.tiering:
        says = f"the engine has no offloading tiers (connector: {engine}): it neither pulls nor gives"
        change = (
            'Start it with the OffloadingConnector, "spec_name": "TieringOffloadingSpec" and a secondary '
            'tier of type "p2p", alone or in a MultiConnector.'
        )
        return Finding(Severity.ERROR, check, (told.name,), engine, says, change)
    if not told.facts.through_sidecar:
        return fine(check, told.name, _short(engine))
    if settings is None:
        return untold(check, told.name, f"the sidecar's connector: {_WHERE}; the engine has {engine}")
    if wrong := _mismatch(told, ours, settings.get("enable-p2p-pull", "")):
        return Finding(Severity.ERROR, check, (told.name,), f"{ours} ≠", wrong[0], wrong[1])
    return fine(check, told.name, f"{ours}")


def _mismatch(told: Told, ours: str, pulls: str) -> tuple[str, str] | None:
    """What is wrong and what would be right, of a sidecar's connector in front of this engine."""
    engine = ", ".join(engine_connectors(told))
    _, needs_nixl = _NEEDS.get(ours, (False, False))
    if ours not in _NEEDS:
        return f"the sidecar's --kv-connector={ours} cannot pull", "Give it --kv-connector=offloading."
    if needs_nixl and pulls != "true":
        says = f"the sidecar's --kv-connector={ours} does not pull without --enable-p2p-pull"
        return says, "Add --enable-p2p-pull, or --kv-connector=offloading where the engine has no NIXL."
    if needs_nixl and not told.families.nixl:
        says = f"the sidecar speaks {ours}, the engine has {engine} and no NIXL"
        return says, "Give the sidecar --kv-connector=offloading, or the engine a MultiConnector with NIXL."
    return None


def _short(connectors: str) -> str:
    return connectors.replace("Connector", "").lower()


def _guard(told: Told, sidecar: SidecarTold) -> Finding:
    check = "guard"
    if sidecar.settings and sidecar.settings.get("source-guard") == "off":
        says = (
            "the source guard is off: one contact with a dead peer makes every later pull of the engine hang"
        )
        change = "Leave --source-guard on, its default."
        return Finding(Severity.WARNING, check, (told.name,), "off", says, change)
    refused = [source.p2p for source in sidecar.sources if source.guard == "refuses"]
    silent = [source.p2p for source in sidecar.sources if source.silent]
    if sidecar.rescues:
        says = f"{sidecar.rescues:.0f} pulls hung and were sent again without their source"
        change = "Start the engine again if pulls still hang: its P2P plane does not recover (vLLM 0.32)."
        return Finding(Severity.WARNING, check, (told.name,), "rescued", says, change)
    if sidecar.bad_sources:
        who = ", ".join(refused) or f"{sidecar.bad_sources:.0f}"
        says = f"sources that it leaves out, since their P2P port accepts nothing: {who}"
        change = "See that these pods live, and that the sidecar's pod may reach their P2P port."
        return Finding(Severity.WARNING, check, (told.name,), "refuses", says, change)
    if sidecar.silent_sources:
        who = ", ".join(silent) or f"{sidecar.silent_sources:.0f}"
        says = f"sources whose last pulls moved nothing, and that rest: {who}"
        change = "Compare them with this peer: hash seed, block size, dtype, parallel size."
        return Finding(Severity.WARNING, check, (told.name,), "silent", says, change)
    known = sidecar.bad_sources is not None
    return fine(check, told.name, "all well") if known else untold(check, told.name, "not in its metrics")


def _port(told: Told, port: str) -> Finding:
    says = f"its sidecar directs pulls to P2P port {port}, this diagnosis looks at {told.peer.p2p.port}"
    change = (
        "Give both the port of the engines' P2P tier: --p2p-connector-port there, --p2p-port or --p2p here."
    )
    return Finding(Severity.ERROR, "P2P port", (told.name,), f"{port} ≠", says, change)
