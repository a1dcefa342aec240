"""What `sidecar doctor` is asked for, from its command line.

Rule: parses only. A flag that would do nothing beside the others is refused; every refusal names its flag.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sidecar.doctor.flags import INTERVAL_S, PAIRS, POOL_GROUP, SCHEME, parser
from sidecar.doctor.peers import BadFlag
from sidecar.remote import values
from sidecar.remote.client import Trust
from sidecar.remote.place import Place


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for; see the flags of the same names."""

    peers: tuple[Place, ...]
    pool: str | None
    pool_group: str
    scheme: str
    p2p_port: int
    p2p: tuple[str, ...]
    metrics_port: int
    metrics: tuple[str, ...]
    prompt_tokens: int
    most_pairs: int
    timeout_s: float
    verify: bool
    as_json: bool
    watch: bool
    interval_s: float
    trust: Trust

    @property
    def certificates(self) -> str | None:
        """The flag that says which certificates are accepted, if one does."""
        return "--ca-file" if self.trust.ca_file else "--insecure" if self.trust.insecure else None


def parse(argv: Sequence[str]) -> Options:
    """The options. Raises SystemExit (--help, or what argparse refuses) or BadFlag."""
    given = parser().parse_args(argv)
    peers = tuple(place for places in given.peers for place in places)
    if bool(peers) == bool(given.inference_pool):
        raise BadFlag("--peers or --inference-pool: one of the two, and not both")
    for flag, why in _idle(given):
        raise BadFlag(f"{flag}: does nothing {why}")
    return Options(
        peers=peers,
        pool=given.inference_pool,
        pool_group=given.pool_group or POOL_GROUP,
        scheme=given.scheme or SCHEME,
        p2p_port=given.p2p_port,
        p2p=tuple(given.p2p),
        metrics_port=given.metrics_port,
        metrics=tuple(given.metrics),
        prompt_tokens=given.prompt_tokens,
        most_pairs=given.max_pairs or PAIRS,
        timeout_s=given.timeout,
        verify=given.verify_pull,
        as_json=given.json or given.output == "json",
        watch=given.watch,
        interval_s=given.interval or INTERVAL_S,
        trust=_trust(given),
    )


def _idle(given: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Flags that were given and would do nothing, with the reason."""
    if given.pool_group and not given.inference_pool:
        yield "--pool-group", "without --inference-pool"
    if given.scheme and not given.inference_pool:
        yield "--scheme", "without --inference-pool: the URLs of --peers have theirs"
    if given.interval and not given.watch:
        yield "--interval", "without --watch"
    if given.max_pairs and given.verify_pull:
        yield "--max-pairs", "with --verify-pull, which tries one pair"
    if given.ca_file and given.insecure:
        yield "--ca-file", "with --insecure, which accepts any certificate"
    if given.json and given.output == "text":
        yield "--output text", "with --json"


def _trust(given: argparse.Namespace) -> Trust:
    try:
        trust = Trust(given.ca_file, given.insecure, values.headers(given.header))
    except ValueError as error:
        raise BadFlag(f"-H/--header: {error}") from None
    try:
        trust.verify()
    except OSError as error:
        raise BadFlag(f"--ca-file: {given.ca_file}: {error.strerror or error}") from None
    return trust
