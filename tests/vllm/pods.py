"""Pods on loopback: an engine with the sidecar in front of it, started in groups that tests share.

Rule: one group runs at a time, since 24 GiB and two cores hold three or four engines. A pod whose engine a
test has killed is started again when the next test names it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

import httpx

from tests.vllm import engines
from tests.vllm.engines import EngineSpec, Start
from tests.vllm.processes import Program, free_port, start, until_healthy

KINDS: Mapping[str, Callable[[EngineSpec], Start]] = {"vllm": engines.vllm, "embedded": engines.embedded}
CHOICE = "SIDECAR_ENGINES"
"""The variable that says which kind the tests run against; without it they are not collected."""

IPS = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")
"""As in a cluster, pods share their ports and differ in their address."""


@dataclass(slots=True)
class Pod:
    """A pod. sidecars: all that run in front of its engine; the first is the one that peers name."""

    spec: EngineSpec
    port: int
    engine: Program
    sidecars: list[Program]

    @property
    def name(self) -> str:
        """Of the pod, in a group and in the names of logs."""
        return self.spec.name

    @property
    def url(self) -> str:
        """Of the sidecar."""
        return f"http://{self.netloc}"

    @property
    def netloc(self) -> str:
        """The pod as the endpoint picker names it."""
        return f"{self.spec.ip}:{self.port}"

    @property
    def engine_url(self) -> str:
        """Of the engine itself, past the sidecar."""
        return f"http://127.0.0.1:{self.spec.port}"

    @property
    def engine_netloc(self) -> str:
        """The engine as a prefiller without a sidecar."""
        return f"127.0.0.1:{self.spec.port}"

    @property
    def log_name(self) -> str:
        """Of the sidecar's log."""
        return self.sidecars[0].name

    def stop(self) -> None:
        """End sidecars, then the engine."""
        for program in (*self.sidecars, self.engine):
            program.stop()


@dataclass(frozen=True, slots=True)
class Group:
    """Pods that belong together. connector: of the engines. flags: of the sidecars. seeds: hash seeds."""

    name: str
    pods: tuple[str, ...]
    connector: str
    flags: tuple[str, ...]
    seeds: Mapping[str, str] = field(default_factory=dict)


TIERS = Group("tiers", ("a", "b", "c", "x"), "offloading", ("--kv-connector=offloading",), {"x": "1"})
"""a, b and c are peers; the hash seed of x differs from theirs."""
NIXL = Group("nixl", ("p", "d"), "nixl", ("--kv-connector=nixlv2",))
REUSE = Group("reuse", ("p", "d"), "reuse", ("--kv-connector=nixlv2", "--enable-bidirectional-kv-xfer"))
BOTH = Group("both", ("s", "p", "d"), "multi", ("--kv-connector=nixlv2", "--enable-p2p-pull"))


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods of a group by name; one whose engine a test has killed is started again when it is named."""

    fleet: Fleet

    def __getitem__(self, name: str) -> Pod:
        return self.fleet.serving(name)


class Fleet:
    """Starts groups and ends them. Use `pods(group)`, and `stop()` at the end."""

    def __init__(self, kind: str, traces: str) -> None:
        self._begin = KINDS[kind]
        self.kind = kind
        self._traces = traces
        self._group: Group | None = None
        self._pods: dict[str, Pod] = {}
        self._ports: dict[str, int] = {}
        self.started_s: list[tuple[str, float]] = []

    def pods(self, group: Group) -> Pods:
        """The group's pods; the first call for a group starts them all. Raises NotStarted."""
        if self._group != group:
            self.stop()
            self._group = group
            self._ports = {name: free_port(*IPS) for name in ("sidecar", "p2p", "nixl")}
            self._start(group, group.pods)
        return Pods(self)

    def serving(self, name: str) -> Pod:
        """A pod of the running group, started again when its engine or a sidecar has ended."""
        assert self._group is not None
        pod = self._pods[name]
        if not self._whole(pod):
            pod.stop()
            self._start(self._group, (name,))
        return self._pods[name]

    def stop(self) -> None:
        """End every pod."""
        for pod in self._pods.values():
            pod.engine.ask_to_end()
        for pod in self._pods.values():
            pod.stop()
        self._pods = {}
        self._group = None

    def extra_sidecar(self, pod: Pod, name: str, flags: Sequence[str]) -> str:
        """One more sidecar in front of a pod's engine; its URL. It ends with the pod."""
        port = free_port(pod.spec.ip)
        sidecar = self._sidecar(f"{pod.sidecars[0].name}-{name}", pod.spec, port, flags)
        pod.sidecars.append(sidecar)
        until_healthy(sidecar, f"http://{pod.spec.ip}:{port}")
        return f"http://{pod.spec.ip}:{port}"

    def _whole(self, pod: Pod) -> bool:
        if not all(program.running for program in (pod.engine, *pod.sidecars)):
            return False
        try:
            return httpx.get(f"{pod.engine_url}/health", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def _start(self, group: Group, names: Sequence[str]) -> None:
        began_s = monotonic()
        begun = [self._pod(group, name) for name in names]
        for pod in begun:
            until_healthy(pod.engine, pod.engine_url)
            until_healthy(pod.sidecars[0], pod.url)
        self.started_s.append((f"{group.name} {' '.join(names)}", monotonic() - began_s))

    def _pod(self, group: Group, name: str) -> Pod:
        spec = EngineSpec(
            name=f"{group.name}-{name}",
            connector=group.connector,
            ip=IPS[group.pods.index(name)],
            port=free_port("127.0.0.1"),
            p2p_port=self._ports["p2p"],
            nixl_port=self._ports["nixl"],
            hash_seed=group.seeds.get(name, "0"),
            traces=self._traces + "/v1/traces",
        )
        engine = self._engine(spec)
        sidecar = self._sidecar(f"sidecar-{spec.name}", spec, self._ports["sidecar"], group.flags)
        pod = self._pods[name] = Pod(spec, self._ports["sidecar"], engine, [sidecar])
        return pod

    def _engine(self, spec: EngineSpec) -> Program:
        begin = self._begin(spec)
        return start(f"engine-{spec.name}", begin.command, begin.environ)

    def _sidecar(self, name: str, spec: EngineSpec, port: int, flags: Sequence[str]) -> Program:
        command = (
            sys.executable,
            "-m",
            "sidecar",
            f"--host={spec.ip}",
            f"--port={port}",
            f"--model-server-port={spec.port}",
            f"--p2p-connector-port={spec.p2p_port}",
            "--secure-serving=false",
            "--tracing",
            # On two cores that several engines share, a probe may wait for its turn longer than 50 ms.
            "--source-guard-timeout=2s",
            *flags,
        )
        environ = {
            "POD_IP": spec.ip,
            "OTEL_SERVICE_NAME": name,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_ENDPOINT": self._traces,
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        return start(name, command, environ)


def chosen_kind() -> str | None:
    """Which engines the tests run against, or None when they are not to run."""
    kind = os.environ.get(CHOICE)
    if kind is not None and kind not in KINDS:
        raise ValueError(f"{CHOICE} must be one of {', '.join(KINDS)}")
    return kind
