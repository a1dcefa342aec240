"""Makes the parts that every exchange uses, from the settings.

Rule: reads like a table of contents; each part gets plain values, none gets the settings.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from sidecar.concurrency import Concurrency
from sidecar.connectors import CONNECTORS, Connector, Options
from sidecar.connectors.options import MoRIIO
from sidecar.counters import UNCOUNTED, Counters
from sidecar.endpoint import Endpoint
from sidecar.engine_tls import EngineTLS
from sidecar.guard import GuardTimes, SourceGuard
from sidecar.intake import Limits
from sidecar.kvparams import Policy
from sidecar.moriio_hosts import LookupTimes, MoRIIOHosts
from sidecar.observers import Observer, Observers, OfPulls, PullRecord
from sidecar.plan import Peer
from sidecar.planning import Planner
from sidecar.protection import Protection, protection_of
from sidecar.recall import remembering
from sidecar.rescue import Rescuer
from sidecar.routing import Rules
from sidecar.scraping import Scraper
from sidecar.services import Services
from sidecar.settings import Settings
from sidecar.source_counters import SourceCounters
from sidecar.stages import stages_of, trust_of
from sidecar.started import StartedLegs
from sidecar.transport import Resolver
from sidecar.upstream import Retries, Upstream
from sidecar.verify import Verifier
from sidecar.websocket import Tunnels
from sidecar.yields import YieldRules, Yields


@dataclass(frozen=True, slots=True)
class Deciders:
    """What decides about requests. connector: the row of the table that the settings name."""

    connector: Connector
    rules: Rules
    planner: Planner
    limits: Limits


def deciders(settings: Settings, *, rank: int = 0) -> Deciders:
    """What decides about requests, as it is before any name of a host is looked up."""
    # MoRI-IO's write mode is nixlv2 to the user, and a connector of its own to us.
    connector = CONNECTORS["moriio" if settings.writes_moriio else settings.kv_connector]
    return Deciders(
        connector,
        _rules(settings, connector, rank),
        Planner(
            connector,
            _options(settings),
            ec_connector=settings.ec_connector,
            chunk_tokens=settings.decode_chunk_size,
            local_after_failure=settings.prefill_failure_policy == "local",
        ),
        Limits(settings.max_request_bytes, Policy(settings.client_kv_transfer_params)),
    )


def build(
    settings: Settings, watchers: Sequence[Observer], *, rank: int = 0, counters: Counters = UNCOUNTED
) -> Services:
    """The parts that every exchange uses, watched by these and by what verifies pulls."""
    decides = deciders(settings, rank=rank)
    yields = Yields(_yield_rules(settings))
    tls = EngineTLS(trust_of(settings))
    scraper = Scraper(tls)
    resolver = Resolver()
    guard = SourceGuard(_guard_times(settings), resolver) if settings.source_guard == "on" else None
    protection = protection_of(settings)
    told = Observers([*watchers, yields])
    sources = _sources(settings, scraper, _contactable(protection, guard), told)
    verifier = _verifier(settings, scraper, decides.rules, sources.pull if sources else told.pull)
    # Entered first: others find a leg's pull in its record.
    observers = Observers([OfPulls([verifier, yields, *([sources] if sources else [])]), *watchers])
    hosts = MoRIIOHosts(decides.planner.options, _lookup_times(settings), resolver, counters)
    return Services(
        rules=decides.rules,
        planner=replace(decides.planner, connector=hosts.keeping(decides.connector)),
        limits=decides.limits,
        upstream=Upstream(stages_of(settings, resolver, tls), observers, _retries(settings)),
        observers=observers,
        tunnels=Tunnels(observers, tls, settings.connect_timeout_s),
        guard=guard,
        choose=random.randrange,
        started=StartedLegs(settings.shutdown_grace_s),
        yields=yields,
        verifier=verifier,
        source_counters=sources,
        rescuer=Rescuer(after_s, scraper, counters) if (after_s := settings.pull_rescue_after_s) else None,
        scraper=scraper,
        moriio_hosts=hosts,
        protection=protection,
        engine_tls=tls,
        concurrency=Concurrency(settings.max_concurrent_requests),
        counters=counters,
        turns=remembering(settings),
        debug=settings.debug_endpoints,
    )


def _retries(settings: Settings) -> Retries:
    return Retries(settings.prefill_max_retries, settings.prefill_retry_backoff_s)


def _rules(settings: Settings, connector: Connector, rank: int) -> Rules:
    return Rules(
        decoder=Endpoint("localhost", settings.model_server_port),
        own=own_endpoint(settings, 0),
        base_port=settings.port,
        p2p_port=settings.p2p_connector_port,
        ranks=settings.data_parallel_size,
        pulls=settings.enable_p2p_pull if connector.pulls is None else connector.pulls,
        sample=settings.enable_prefiller_sampling,
        encode=settings.ec_connector is not None,
    ).at(rank)


def _verifier(
    settings: Settings, scraper: Scraper, rules: Rules, tell: Callable[[PullRecord], None]
) -> Verifier:
    return Verifier(
        scraper if rules.pulls and _verifies(settings) else None,
        tell,
        rules.decoder,
        interval_s=settings.pull_verification_interval_s,
        sole=settings.processes == 1,
    )


def _verifies(settings: Settings) -> bool:
    """`auto` looks at engines only where somebody looks at what it finds."""
    wanted = settings.tracing or settings.metrics_port
    return settings.pull_verification == "on" or (settings.pull_verification == "auto" and bool(wanted))


def _sources(
    settings: Settings, scraper: Scraper, may: Callable[[Peer], bool], told: Observers
) -> SourceCounters | None:
    if not _verifies(settings) or settings.pull_verification_sources == "off":
        return None
    interval_s = settings.pull_verification_source_interval_s
    return SourceCounters(scraper, may, told, interval_s=interval_s)


def _contactable(protection: Protection, guard: SourceGuard | None) -> Callable[[Peer], bool]:
    """Whether a source may be contacted now: by SSRF protection, and by what the guard knows of it."""

    def may(source: Peer) -> bool:
        allowlist = protection.allowlist
        allowed = allowlist is None or allowlist.allows(source.endpoint)
        return allowed and (guard is None or guard.trusts(source.p2p))

    return may


def _yield_rules(settings: Settings) -> YieldRules:
    retry_s = settings.silent_zero_retry_s if settings.silent_zero_suspend else None
    return YieldRules(settings.silent_zero_threshold, retry_s)


def _lookup_times(settings: Settings) -> LookupTimes:
    return LookupTimes(settings.moriio_dns_resolve_ttl_s, settings.moriio_dns_resolve_timeout_s)


def _options(settings: Settings) -> Options:
    moriio = {field.name: getattr(settings, f"moriio_{field.name}") for field in fields(MoRIIO)}
    return Options(
        mooncake_bootstrap_port=settings.mooncake_bootstrap_port,
        sglang_bootstrap_port=settings.sglang_bootstrap_port,
        moriio=MoRIIO(**moriio) if settings.writes_moriio else MoRIIO(),
    )


def own_endpoint(settings: Settings, rank: int) -> Endpoint | None:
    """This rank of this pod as its peers name it; settings have `pod_ip` in its normal form."""
    return Endpoint(settings.pod_ip, settings.port + rank) if settings.pod_ip else None


def _guard_times(settings: Settings) -> GuardTimes:
    return GuardTimes(
        budget_s=settings.source_guard_timeout_s,
        good_s=settings.source_guard_good_ttl_s,
        bad_s=settings.source_guard_bad_ttl_s,
        table_entries=settings.source_guard_table_size,
    )
