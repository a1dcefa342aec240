"""What is read of an InferencePool and its pods."""

from __future__ import annotations

import json

import msgspec
import pytest

from sidecar.endpoint import Endpoint
from sidecar.pool.objects import Page, Pod, Pool, serving
from tests.pool.kube import Object, pod, pool


def read_pool(what: Object) -> Pool:
    return msgspec.json.decode(json.dumps(what), type=Pool)


def addresses(what: Object) -> frozenset[str]:
    return msgspec.json.decode(json.dumps(what), type=Pod).addresses


def test_a_pool_has_a_selector_and_ports() -> None:
    read = read_pool(pool("p", (8000, 8001), b="2", a="1"))
    assert (read.selector, read.ports) == ("a=1,b=2", (8000, 8001))


@pytest.mark.parametrize("spec", [{}, {"selector": {"matchLabels": {"a": "b"}}, "targetPortNumber": 8000}])
def test_a_pool_of_another_version_is_refused(spec: Object) -> None:
    with pytest.raises(msgspec.ValidationError):
        read_pool({"metadata": {"name": "p"}, "spec": spec})


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_pod_that_is_over_has_no_address(phase: str) -> None:
    assert addresses(pod("a", "10.0.0.1", phase=phase)) == frozenset()


def test_a_pod_that_ends_or_has_not_begun_has_no_address() -> None:
    ending = pod("a", "10.0.0.1")
    ending["metadata"]["deletionTimestamp"] = "2026-11-30T08:00:00Z"
    assert addresses(ending) == frozenset()
    assert addresses(pod("a")) == frozenset()
    assert addresses({"metadata": {"name": "a"}}) == frozenset()
    assert addresses(pod("a", "10.0.0.1", phase="Pending")) == {"10.0.0.1"}


def test_ranks_stand_above_each_port_and_no_port_passes_the_last() -> None:
    assert set(serving(["10.0.0.1", "not an address"], [8000, 65535], 2)) == {
        Endpoint("10.0.0.1", 8000),
        Endpoint("10.0.0.1", 8001),
        Endpoint("10.0.0.1", 65535),
    }


def test_a_page_without_items_is_empty() -> None:
    page = msgspec.json.decode(b'{"metadata":{"resourceVersion":"7"},"items":null}', type=Page)
    assert (page.items, page.metadata.resource_version, page.metadata.continue_) == (None, "7", None)
