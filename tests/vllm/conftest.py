"""Starts the fleet for these tests, and keeps a plain `pytest tests` away from them.

Rule: without `SIDECAR_ENGINES` nothing here is collected (`python -m tests.vllm` sets it).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.vllm.collector import Collector, collecting
from tests.vllm.figures import Figures
from tests.vllm.pods import BOTH, NIXL, REUSE, TIERS, Fleet, Pods, chosen_kind

GROUPS = ("tiers", "nixl", "reuse", "both")

collect_ignore_glob = [] if chosen_kind() else ["test_*.py"]


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    """Where engines and sidecars export their spans."""
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="session")
def fleet(collector: Collector) -> Iterator[Fleet]:
    """The pods of the group that the tests have come to."""
    fleet = Fleet(chosen_kind() or "", collector.url)
    try:
        yield fleet
    finally:
        fleet.stop()
        print("started, in seconds:", [(name, round(took_s)) for name, took_s in fleet.started_s])


@pytest.fixture
def tiers(fleet: Fleet) -> Pods:
    """Four pods with a P2P tier."""
    return fleet.pods(TIERS)


@pytest.fixture
def nixl(fleet: Fleet) -> Pods:
    """A prefill and a decode pod with NIXL."""
    return fleet.pods(NIXL)


@pytest.fixture
def reuse(fleet: Fleet) -> Pods:
    """A prefill and a decode pod with NIXL in both directions."""
    return fleet.pods(REUSE)


@pytest.fixture
def both(fleet: Fleet) -> Pods:
    """Three pods with NIXL and a P2P tier in one MultiConnector."""
    return fleet.pods(BOTH)


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """Where a test notes what moved."""
    return Figures(request.node.name, chosen_kind() or "")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """One group after the other, since each start costs a minute; in each the faults come last."""
    if not chosen_kind():
        return
    items.sort(
        key=lambda item: (
            min((at for at, name in enumerate(GROUPS) if name in item.fixturenames), default=-1),
            item.module.__name__.endswith("test_faults"),
        )
    )
