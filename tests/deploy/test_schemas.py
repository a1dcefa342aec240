"""Every object of every overlay is what Kubernetes 1.37 and the operators accept, unknown fields refused."""

from __future__ import annotations

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.render import NAMES, ROOT, Object, render, template
from tests.deploy.schemas import SCHEMAS

_VERSION = "1.37"


def _judge(made: Object) -> None:
    schema = SCHEMAS.get((made["apiVersion"], made["kind"]))
    if schema is None:
        kubernetes_validate.validate(made, _VERSION, strict=True)
        return
    jsonschema.validate(made, schema)
    if made["kind"] == "LeaderWorkerSet":
        pod = {"apiVersion": "v1", "kind": "Pod", **template(made)}
        kubernetes_validate.validate(pod, _VERSION, strict=True)


@pytest.mark.parametrize("overlay", NAMES)
def test_every_object_is_valid(overlay: str) -> None:
    for made in render(overlay):
        _judge(made)


@pytest.mark.parametrize("overlay", NAMES)
def test_no_object_is_there_twice(overlay: str) -> None:
    names = [(made["kind"], made["metadata"]["name"]) for made in render(overlay)]
    assert len(names) == len(set(names))


def test_the_sample_of_a_pod_is_valid() -> None:
    _judge(yaml.safe_load((ROOT / "config" / "pod.yaml").read_text()))


def test_a_field_that_kubernetes_does_not_know_is_refused() -> None:
    made = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"prots": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        _judge(made)


def test_a_pool_of_nine_ports_is_refused() -> None:
    [pool] = [made for made in render("wide-ep") if made["kind"] == "InferencePool"]
    ports = [{"number": 8000 + rank} for rank in range(9)]
    with pytest.raises(jsonschema.ValidationError):
        _judge({**pool, "spec": {**pool["spec"], "targetPorts": ports}})
