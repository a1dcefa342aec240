"""Keeps the allowlist in step with the InferencePool and its pods.

Rule: acts, beside the exchanges: no request waits for it. Before the pool and its pods were seen once only
the static entries are allowed; after that what was seen last holds while the API cannot be reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType

import msgspec

from sidecar.allowlist import Allowlist
from sidecar.pool.api import ClusterApi
from sidecar.pool.objects import Pod, Pool, serving
from sidecar.pool.reflector import Collection, Reflector

logger = logging.getLogger("sidecar.pool")


@dataclass(frozen=True, slots=True)
class PoolName:
    """The pool of `--inference-pool` in the API group of `--pool-group`."""

    group: str
    namespace: str
    name: str

    @classmethod
    def parse(cls, group: str, text: str) -> PoolName:
        """Of `namespace/name` or a bare `name`, which is in namespace default (as the peer reads it)."""
        namespace, slash, name = text.partition("/")
        return cls(group, namespace, name) if slash else cls(group, "default", namespace)

    @property
    def pools_path(self) -> str:
        """Where the API has the pools of its namespace."""
        return f"/apis/{self.group}/v1/namespaces/{self.namespace}/inferencepools"

    @property
    def pods_path(self) -> str:
        """Where the API has the pods of its namespace; a pool has none of others."""
        return f"/api/v1/namespaces/{self.namespace}/pods"


class PoolWatch:
    """Use as an asynchronous context manager; the watch runs from its entry, which waits for nothing.

    allowlist: as it is now. synced: whether the pool and its pods have been seen. static: entries that are
    always allowed. ranks: of each pod's engine (`--data-parallel-size`). connect: a fresh way to the API.
    """

    def __init__(
        self, connect: Callable[[], ClusterApi], pool: PoolName, static: Allowlist, ranks: int
    ) -> None:
        self.allowlist = static
        self.synced = False
        self._connect, self._name, self._static, self._ranks = connect, pool, static, ranks
        self._pool: Pool | None = None
        self._hosts: frozenset[str] = frozenset()
        self._group = asyncio.TaskGroup()
        self._pools: asyncio.Task[None] | None = None
        self._pods: asyncio.Task[None] | None = None
        self._missed = False

    async def __aenter__(self) -> PoolWatch:
        await self._group.__aenter__()
        query = {"fieldSelector": f"metadata.name={self._name.name}"}
        pools = Collection(self._name.pools_path, msgspec.json.Decoder(Pool).decode, query)
        self._pools = self._group.create_task(Reflector(self._connect(), pools, self._pool_changed).run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in (self._pools, self._pods):
            if task is not None:
                task.cancel()
        await self._group.__aexit__(kind, error, trace)

    def _pool_changed(self, pools: Mapping[str, Pool]) -> None:
        before, self._pool = self._pool, pools.get(self._name.name)
        selector = self._pool.selector if self._pool else ""
        if not selector:
            self._absent()
        elif before is None or before.selector != selector:
            # The pods of the old selector stay until those of the new one have been listed.
            self._follow_pods(selector)
        self._publish()

    def _absent(self) -> None:
        """There is no pool, or one that selects nothing: nothing of it is allowed."""
        self._hosts = frozenset()
        if self._pods is not None:
            self._pods.cancel()
            self._pods = None
        if self.synced or not self._missed:
            self._missed = True
            what = "has no labels to select pods by" if self._pool else "does not exist"
            logger.warning("InferencePool %s/%s %s", self._name.namespace, self._name.name, what)

    def _follow_pods(self, selector: str) -> None:
        if self._pods is not None:
            self._pods.cancel()
        decode = msgspec.json.Decoder(Pod).decode
        pods = Collection(
            self._name.pods_path, lambda raw: decode(raw).addresses, {"labelSelector": selector}
        )
        self._pods = self._group.create_task(Reflector(self._connect(), pods, self._pods_changed).run())

    def _pods_changed(self, pods: Mapping[str, frozenset[str]]) -> None:
        self._hosts = frozenset().union(*pods.values())
        self._publish()
        if not self.synced:
            self.synced = True
            fields = {"pods": len(pods), "endpoints": len(self.allowlist.endpoints)}
            logger.info("the allowlist knows the pool", extra={"fields": fields})

    def _publish(self) -> None:
        ports = self._pool.ports if self._pool else ()
        self.allowlist = self._static.joined(serving(self._hosts, ports, self._ranks))
