"""A scripted Kubernetes API server: speaks list and watch of two collections over TLS on loopback."""

from __future__ import annotations

import asyncio
import copy
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.bombs import BOMB

POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/ns/inferencepools"
PODS = "/api/v1/namespaces/ns/pods"

Object = dict[str, Any]


@dataclass
class Asked:
    """One request as it came."""

    path: str
    query: dict[str, str]
    token: str
    accepts: str = ""

    @property
    def watches(self) -> bool:
        return self.query.get("watch") == "true"


@dataclass(eq=False)
class _Watch:
    asked: Asked
    writer: asyncio.StreamWriter
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, kind: str, what: Object) -> None:
        line = json.dumps({"type": kind, "object": what}, ensure_ascii=False).encode() + b"\n"
        self.writer.write(b"%x\r\n%b\r\n" % (len(line), line))


class KubeApi:
    """The server. asked: what came. refusals: statuses to answer the next requests with, before anything.

    packed: of so many next answers each is a bomb, whatever its status.
    """

    def __init__(self, tls: ssl.SSLContext) -> None:
        self.tls = tls
        self.port = 0
        self.tokens = {"first"}
        self.asked: list[Asked] = []
        self.refusals: list[int] = []
        self.packed = 0
        self.version = 100
        self.oldest = 0
        self.page_objects: int | None = None
        self._objects: dict[str, dict[str, Object]] = {POOLS: {}, PODS: {}}
        self._history: list[tuple[int, str, str, Object]] = []
        self._watches: set[_Watch] = set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # What tests do to the cluster.

    def put(self, path: str, what: Object) -> None:
        """Create or change an object."""
        before = self._objects[path].get(what["metadata"]["name"])
        kept = copy.deepcopy(what)
        self._objects[path][kept["metadata"]["name"]] = kept
        self._record(path, "ADDED" if before is None else "MODIFIED", kept, before)

    def delete(self, path: str, name: str) -> None:
        """Delete an object."""
        self._record(path, "DELETED", self._objects[path].pop(name), None)

    def forget(self) -> None:
        """Compact: no version up to now can be watched from any more."""
        self.version += 10
        self.oldest = self.version

    def bookmark(self) -> None:
        """Tell every watch the version of now."""
        self.version += 1
        for watch in self._watches:
            watch.send("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(self.version)}})

    def expire_watches(self) -> None:
        """What an API server says on a watch whose version it has forgotten while it ran."""
        for watch in tuple(self._watches):
            watch.send("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
            watch.ended.set()

    def end_watches(self) -> None:
        """End them cleanly, as after timeoutSeconds."""
        for watch in tuple(self._watches):
            watch.ended.set()

    def break_watches(self) -> None:
        """Cut their connections."""
        for watch in tuple(self._watches):
            watch.writer.transport.abort()

    @property
    def watching(self) -> list[Asked]:
        """The watches that are open."""
        return [watch.asked for watch in self._watches]

    async def start(self) -> None:
        """Listen, on the same port when it did before."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Go away with every connection."""
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    # The API.

    def _record(self, path: str, kind: str, what: Object, before: Object | None) -> None:
        self.version += 1
        what["metadata"]["resourceVersion"] = str(self.version)
        self._history.append((self.version, path, kind, copy.deepcopy(what)))
        for watch in self._watches:
            self._notify(watch, path, kind, what, before)

    def _notify(self, watch: _Watch, path: str, kind: str, what: Object, before: Object | None) -> None:
        if watch.asked.path != path:
            return
        if _selected(what, watch.asked.query):
            watch.send(kind, what)
        elif before is not None and _selected(before, watch.asked.query):
            watch.send("DELETED", what)  # it has left the selection

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                headers: dict[str, str] = {}
                while text := (await reader.readline()).decode().strip():
                    name, _, value = text.partition(":")
                    headers[name.lower()] = value.strip()
                url = urlsplit(line.decode().split(" ")[1])
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                token = headers.get("authorization", "").removeprefix("Bearer ")
                asked = Asked(url.path, query, token, headers.get("accept-encoding", ""))
                self.asked.append(asked)
                await self._answer(asked, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.transport.abort()

    async def _answer(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if self.packed:
            self.packed -= 1
            await _say_packed(writer, self.refusals.pop(0) if self.refusals else 200)
        elif self.refusals:
            await _say(writer, self.refusals.pop(0), {"kind": "Status", "message": "refused by the script"})
        elif asked.token not in self.tokens:
            await _say(writer, 401, {"kind": "Status", "message": "Unauthorized"})
        elif not asked.watches:
            await self._list(asked, writer)
        elif int(asked.query["resourceVersion"]) < self.oldest:
            await _say(writer, 410, {"kind": "Status", "code": 410, "message": "too old resource version"})
        else:
            await self._watch(asked, writer)

    async def _list(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        chosen = [one for one in self._objects[asked.path].values() if _selected(one, asked.query)]
        begin = int(asked.query.get("continue", "0"))
        end = begin + (self.page_objects or int(asked.query["limit"]))
        meta = {"resourceVersion": str(self.version)}
        if end < len(chosen):
            meta["continue"] = str(end)
        await _say(writer, 200, {"kind": "List", "metadata": meta, "items": chosen[begin:end]})

    async def _watch(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        watch = _Watch(asked, writer)
        since = int(asked.query["resourceVersion"])
        for version, path, kind, what in self._history:
            if version > since:
                self._notify(watch, path, kind, what, None)
        self._watches.add(watch)
        try:
            while not watch.ended.is_set() and not writer.transport.is_closing():
                await asyncio.sleep(0.005)
            writer.write(b"0\r\n\r\n")
        finally:
            self._watches.discard(watch)


def _selected(what: Object, query: dict[str, str]) -> bool:
    labels = what["metadata"].get("labels", {})
    wanted = dict(one.split("=") for one in query.get("labelSelector", "").split(",") if one)
    name = query.get("fieldSelector", "").removeprefix("metadata.name=")
    return wanted.items() <= labels.items() and name in ("", what["metadata"]["name"])


async def _say(writer: asyncio.StreamWriter, status: int, what: Object) -> None:
    content = json.dumps(what).encode()
    writer.write(
        b"HTTP/1.1 %d Said\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (status, len(content), content)
    )
    await writer.drain()


async def _say_packed(writer: asyncio.StreamWriter, status: int) -> None:
    writer.write(
        b"HTTP/1.1 %d Said\r\ncontent-encoding: gzip, gzip\r\ncontent-length: %d\r\n\r\n%b"
        % (status, len(BOMB), BOMB)
    )
    await writer.drain()


def pool(name: str = "pool", ports: tuple[int, ...] = (8000,), **labels: str) -> Object:
    """An InferencePool."""
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {
            "selector": {"matchLabels": labels or {"app": "vllm"}},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": "epp"},
        },
    }


def pod(name: str, ip: str = "", *, phase: str = "Running", **labels: str) -> Object:
    """A pod, with a character in it that is a line's end to some readers and not to JSON."""
    status: Object = {"phase": phase}
    if ip:
        status |= {"podIP": ip, "podIPs": [{"ip": ip}]}
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "labels": labels or {"app": "vllm"},
            "note": "a\u2028b\x85",
        },
        "status": status,
    }


@asynccontextmanager
async def kube(tls: ssl.SSLContext) -> AsyncIterator[KubeApi]:
    """Run one for as long as the block lasts."""
    api = KubeApi(tls)
    await api.start()
    try:
        yield api
    finally:
        await api.stop()
