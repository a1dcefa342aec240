"""Finds the peers of an InferencePool: its pods at its ports, as they are now.

Rule: acts, once; of the watch only its objects and its client are used, and that is imported here alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping

import msgspec

from sidecar.pool.api import ClusterApi, ClusterError
from sidecar.pool.objects import Page, Pod, Pool, serving
from sidecar.pool.watch import PoolName

_FLAG = "--inference-pool"
# As the watch asks for them: a page keeps a large list from being one large answer.
_PAGE_OBJECTS = "500"


async def pool_urls(text: str, group: str, scheme: str) -> tuple[str, ...]:
    """The URLs of a pool's pods, in the order of their names. Raises ValueError that begins with the flag."""
    try:
        from sidecar.pool.cluster import Cluster, credentials
    except ImportError as error:
        raise ValueError(f"{_FLAG}: needs the extra sidecar[kubernetes] ({error})") from None
    credentials()
    cluster = Cluster()
    try:
        return await listed(cluster, PoolName.parse(group, text), scheme)
    except ClusterError as error:
        raise ValueError(f"{_FLAG}: {error}") from None
    finally:
        await cluster.aclose()


async def listed(api: ClusterApi, name: PoolName, scheme: str) -> tuple[str, ...]:
    """The same by a way to the API. Raises ClusterError, ValueError."""
    query = {"fieldSelector": f"metadata.name={name.name}"}
    pools = [msgspec.json.decode(raw, type=Pool) async for raw in _objects(api, name.pools_path, query)]
    where = f"{_FLAG}: {name.namespace}/{name.name}"
    if not pools:
        raise ValueError(f"{where} does not exist")
    if not pools[0].selector:
        raise ValueError(f"{where} has no labels to select pods by")
    pods = [
        msgspec.json.decode(raw, type=Pod)
        async for raw in _objects(api, name.pods_path, {"labelSelector": pools[0].selector})
    ]
    urls = tuple(_urls(pods, pools[0], scheme))
    if not urls:
        raise ValueError(f"{where} has no pod with an address")
    return urls


def _urls(pods: list[Pod], pool: Pool, scheme: str) -> Iterator[str]:
    """One per pod and port: of its addresses the first, since all are one pod."""
    for pod in sorted(pods, key=lambda one: one.metadata.name):
        address = pod.status.pod_ip if pod.addresses else ""
        if address:
            ends = sorted(serving([address], pool.ports, 1), key=lambda end: end.port)
            yield from (f"{scheme}://{end.netloc}" for end in ends)


async def _objects(api: ClusterApi, path: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
    """All of a collection, page after page."""
    after = ""
    while True:
        more = {"continue": after} if after else {}
        page = msgspec.json.decode(await api.get(path, {**query, "limit": _PAGE_OBJECTS, **more}), type=Page)
        for raw in page.items or ():
            yield bytes(raw)
        if not page.metadata.continue_:
            return
        after = page.metadata.continue_
