"""Finds the peers of an InferencePool: its pods at its ports, as they are now.

Rule: acts, once; of the watch only its objects and its client are used, and that is imported here alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping

import msgspec

from sidecar.doctor.peers import BadFlag
from sidecar.pool.api import ClusterApi, ClusterError
from sidecar.pool.objects import Page, Pod, Pool, serving
from sidecar.pool.watch import PoolName
from sidecar.remote.place import Place
from sidecar.remote.texts import shown

_FLAG = "--inference-pool"
# As the watch asks for them: a page keeps a large list from being one large answer.
_PAGE_OBJECTS = "500"
# All pages of both lists: a large cluster's take seconds.
_WITHIN_S = 30.0


async def pool_places(text: str, group: str, scheme: str) -> tuple[Place, ...]:
    """The URLs of a pool's pods, in the order of their names. Raises BadFlag."""
    try:
        from sidecar.pool.cluster import Cluster, credentials
    except ImportError as error:
        raise BadFlag(f"{_FLAG}: needs the extra sidecar[kubernetes] ({error})") from None
    try:
        credentials()
    except ValueError as error:
        raise BadFlag(shown(str(error))) from None
    cluster = Cluster()
    try:
        async with asyncio.timeout(_WITHIN_S):
            return await listed(cluster, PoolName.parse(group, text), scheme)
    except ClusterError as error:
        raise BadFlag(f"{_FLAG}: {shown(str(error))}") from None
    except TimeoutError:
        raise BadFlag(f"{_FLAG}: no whole answer of the Kubernetes API within {_WITHIN_S:g} s") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        said = f"{type(error).__name__}: {shown(str(error))}"
        raise BadFlag(f"{_FLAG}: the Kubernetes API's answer cannot be read: {said}") from None
    finally:
        await cluster.aclose()


async def listed(api: ClusterApi, name: PoolName, scheme: str) -> tuple[Place, ...]:
    """The same by a way to the API. Raises ClusterError, BadFlag."""
    query = {"fieldSelector": f"metadata.name={name.name}"}
    pools = [msgspec.json.decode(raw, type=Pool) async for raw in _objects(api, name.pools_path, query)]
    where = f"{_FLAG}: {name.namespace}/{name.name}"
    if not pools:
        raise BadFlag(f"{where} does not exist")
    if not pools[0].selector:
        raise BadFlag(f"{where} has no labels to select pods by")
    pods = [
        msgspec.json.decode(raw, type=Pod)
        async for raw in _objects(api, name.pods_path, {"labelSelector": pools[0].selector})
    ]
    places = tuple(_places(pods, pools[0], scheme))
    if not places:
        raise BadFlag(f"{where} has no pod with an address")
    return places


def _places(pods: list[Pod], pool: Pool, scheme: str) -> Iterator[Place]:
    """One per pod and port: of its addresses the first, since all are one pod."""
    for pod in sorted(pods, key=lambda one: one.metadata.name):
        address = pod.status.pod_ip if pod.addresses else ""
        if address:
            ends = sorted(serving([address], pool.ports, 1), key=lambda end: end.port)
            yield from (Place(scheme, end) for end in ends)


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
