"""Reads what the Kubernetes API says about an InferencePool and its pods, as far as the allowlist needs it.

Rule: pure. Fields are those of inference.networking.k8s.io/v1 (gateway-api-inference-extension, API
reference, InferencePoolSpec) and of Pod v1; all others are passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from sidecar.endpoint import Endpoint, MalformedEndpoint

# Phases in which no container of a pod runs any more (Kubernetes, "Pod Lifecycle").
_OVER = frozenset(("Failed", "Succeeded"))
_LAST_PORT = 65535


class _Struct(msgspec.Struct, frozen=True, rename="camel"):
    pass


class Meta(_Struct, frozen=True):
    """Of an object: its name, and the version at which a watch goes on behind it."""

    name: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None


class PageMeta(_Struct, frozen=True):
    """Of a page: the version of the whole list, and how to ask for the next page; "" on the last."""

    resource_version: str = ""
    continue_: str | None = msgspec.field(default=None, name="continue")


class Page(_Struct, frozen=True):
    """One page of a list."""

    metadata: PageMeta
    items: list[msgspec.Raw] | None = None


class Change(_Struct, frozen=True):
    """One line of a watch. object: of an ERROR a Status, of a BOOKMARK only its version."""

    type: str
    object: msgspec.Raw


class Status(_Struct, frozen=True):
    """Why a request or a watch failed."""

    code: int = 0
    reason: str = ""
    message: str = ""


class Named(_Struct, frozen=True):
    """Any object."""

    metadata: Meta


class _Selector(_Struct, frozen=True):
    match_labels: dict[str, str] = msgspec.field(default_factory=dict)


class _Port(_Struct, frozen=True):
    number: int


class _PoolSpec(_Struct, frozen=True):
    selector: _Selector
    target_ports: list[_Port]


class Pool(_Struct, frozen=True):
    """An InferencePool."""

    spec: _PoolSpec

    @property
    def selector(self) -> str:
        """Its label selector as a query says it; "" selects nothing here, for it would select every pod."""
        labels = self.spec.selector.match_labels
        return ",".join(f"{name}={labels[name]}" for name in sorted(labels))

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports on which its pods serve."""
        return tuple(port.number for port in self.spec.target_ports)


class _PodIP(_Struct, frozen=True):
    ip: str


class _PodStatus(_Struct, frozen=True):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: list[_PodIP] = msgspec.field(default_factory=list, name="podIPs")


class Pod(_Struct, frozen=True):
    """A pod."""

    metadata: Meta
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)

    @property
    def addresses(self) -> frozenset[str]:
        """Its addresses; none before it has one, once it is asked to end, and when it has ended."""
        if self.metadata.deletion_timestamp is not None or self.status.phase in _OVER:
            return frozenset()
        return frozenset(ip for ip in (self.status.pod_ip, *(each.ip for each in self.status.pod_ips)) if ip)


def serving(hosts: Iterable[str], ports: Iterable[int], ranks: int) -> Iterator[Endpoint]:
    """Where pods with these addresses serve: rank r at each of the ports + r."""
    numbers = {port + rank for port in ports for rank in range(ranks) if 0 < port + rank <= _LAST_PORT}
    for host in hosts:
        for number in numbers:
            try:
                yield Endpoint.parse(f"[{host}]:{number}" if ":" in host else f"{host}:{number}")
            except MalformedEndpoint:  # no address at all: the API server does not let it pass
                break
