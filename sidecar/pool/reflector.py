"""Keeps a copy of one collection of the Kubernetes API: lists it, watches it from there, and starts over.

Rule: acts. It never gives up: whatever fails is tried again with back-off, and until then the copy stays as
it was (Kubernetes, "Efficient detection of changes"; client-go tools/cache/reflector.go does the same).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from time import monotonic
from typing import Generic, TypeVar

import msgspec

from sidecar.pool.api import ClusterApi, ClusterError
from sidecar.pool.objects import Change, Named, Page, Status

T = TypeVar("T")

# As client-go: pages keep a large list from being one large answer.
_PAGE_OBJECTS = 500
# How long one watch is asked to last, at least and at most, in seconds (client-go: 5 to 10 minutes). Shorter
# here, since the end of a watch is also what shows that its server is gone without a word.
_WATCH_S = (180, 300)
# How much later than asked for a watch may end, in seconds, before its connection counts as dead.
_LATE_S = 30.0
# The first and the longest wait before another attempt, in seconds; doubled each time, and spread so that
# the sidecars of a pool do not come back all at once (client-go: 0.8 to 30 s).
_FIRST_DELAY_S, _MOST_DELAY_S = 0.5, 30.0
# A watch that lasted so long, in seconds, was a good one: the next failure starts at the first delay.
_LASTED_S = 5.0
# The API's word for a version that it has forgotten: everything is to be listed again.
_GONE = 410
# Its words for credentials that it does not know, and for what they do not allow (RBAC).
_DENIED = frozenset((401, 403))

logger = logging.getLogger("sidecar.pool")


class _Expired(Exception):
    """The version from which to go on is no longer known."""


@dataclass(frozen=True, slots=True)
class Collection(Generic[T]):
    """What is copied. path and query: where it is. read: makes of an object's bytes what is kept of it."""

    path: str
    read: Callable[[bytes], T]
    query: Mapping[str, str] = field(default_factory=dict)


class Reflector(Generic[T]):
    """Runs until it is cancelled; `changed` is given all objects, by name, whenever one has changed."""

    def __init__(
        self, api: ClusterApi, collection: Collection[T], changed: Callable[[Mapping[str, T]], None]
    ) -> None:
        self._api = api
        self._collection = collection
        self._changed = changed
        self._objects: dict[str, T] = {}
        self._version: str | None = None
        self._failures = 0

    async def run(self) -> None:
        """List, watch, and again; the API's connections end with it."""
        try:
            while True:
                await self._round()
        finally:
            await self._api.aclose()

    async def _round(self) -> None:
        began_s = monotonic()
        try:
            if self._version is None:
                await self._list()
            await self._watch(self._version or "")
        except _Expired:
            logger.info("%s is listed again: its version is forgotten", self._collection.path)
            self._version = None
        except ClusterError as error:
            await self._failed(error)
        await self._wait(began_s)

    async def _failed(self, error: ClusterError) -> None:
        level = logging.DEBUG if self._failures else logging.WARNING
        if error.status in _DENIED:
            what = "--inference-pool: no leave to list and watch %s, what is known stays: %s"
        else:
            what = "watching %s failed, what is known stays: %s"
        logger.log(level, what, self._collection.path, error)
        if error.status is not None:
            self._version = None  # the server is there and refuses: only a list is sure to go on
        await self._api.renew()

    async def _wait(self, began_s: float) -> None:
        """The pause before the next attempt; none after a watch that lasted."""
        if monotonic() - began_s >= _LASTED_S:
            self._failures = 0
            return
        delay_s = min(_FIRST_DELAY_S * 2**self._failures, _MOST_DELAY_S)
        self._failures = min(self._failures + 1, 10)
        await asyncio.sleep(delay_s * random.uniform(0.5, 1))

    async def _list(self) -> None:
        objects: dict[str, T] = {}
        query = {**self._collection.query, "limit": str(_PAGE_OBJECTS)}
        while True:
            try:
                page = _decoded(await self._api.get(self._collection.path, query), Page)
            except ClusterError as error:
                if error.status == _GONE:  # the pages behind this one have been forgotten
                    raise _Expired from None
                raise
            for raw in page.items or ():
                self._put(objects, bytes(raw))
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
        self._objects, self._version = objects, page.metadata.resource_version
        self._tell()

    async def _watch(self, version: str) -> None:
        """Follow the changes behind `version` until the server ends it. Raises ClusterError, _Expired."""
        lasts_s = random.randint(*_WATCH_S)
        query = {
            **self._collection.query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(lasts_s),
        }
        try:
            async with asyncio.timeout(lasts_s + _LATE_S):
                async with aclosing(self._api.watch(self._collection.path, query)) as lines:
                    async for line in lines:
                        self._follow(_decoded(line, Change))
                        self._failures = 0
        except TimeoutError:
            raise ClusterError(None, "the watch did not end when it should have") from None
        except ClusterError as error:
            if error.status == _GONE:
                raise _Expired from None
            raise

    def _follow(self, change: Change) -> None:
        if change.type == "ERROR":
            status = _decoded(bytes(change.object), Status)
            raise ClusterError(status.code, status.message or status.reason)
        raw = bytes(change.object)
        meta = _decoded(raw, Named).metadata
        self._version = meta.resource_version or self._version
        if change.type == "DELETED":
            self._objects.pop(meta.name, None)
        elif change.type in ("ADDED", "MODIFIED"):
            self._put(self._objects, raw)
        else:
            return  # a bookmark, or a type of tomorrow: nothing but the version
        self._tell()

    def _put(self, objects: dict[str, T], raw: bytes) -> None:
        """Keep an object; one that cannot be read is as good as none, which denies."""
        name = _decoded(raw, Named).metadata.name
        try:
            objects[name] = self._collection.read(raw)
        except msgspec.DecodeError as error:
            objects.pop(name, None)
            logger.warning(
                "%s/%s cannot be read and counts as absent: %s", self._collection.path, name, error
            )

    def _tell(self) -> None:
        self._changed(self._objects)


D = TypeVar("D")


def _decoded(raw: bytes, kind: type[D]) -> D:
    """Raises ClusterError for what the API does not say."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise ClusterError(0, f"an answer that is not the API's: {error}") from None
