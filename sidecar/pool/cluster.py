"""Reaches the Kubernetes API with lightkube's credentials and TLS, in a cluster or by kubeconfig.

Rule: acts, and is the only module that knows lightkube and its httpx2; their errors are mapped here, once.
lightkube's own watch asks for no bookmarks and splits lines where JSON text may have such characters, so only
its clients are used: they know kubeconfig, exec plugins, client certificates and tokens in files, which they
read again after a 401.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError

from sidecar import bounded, masking
from sidecar.masking import masked
from sidecar.pool.api import ClusterError
from sidecar.pool.objects import Status

# Seconds for a connection, a write, and between two reads of an answer that is not a watch (lightkube's own).
_TIMEOUT_S = 10.0
# An object has at most 1.5 MiB (etcd --max-request-bytes); a line is one and a little around it.
_MAX_LINE_BYTES = 8 * 1024 * 1024
# A page has at most 500 objects (`reflector`); a pod with much in its annotations has 100 KB.
_MAX_PAGE_BYTES = 128 * 1024 * 1024


def credentials(service_account: str = SERVICE_ACCOUNT) -> SingleConfig:
    """Where the API is and who we are: by KUBECONFIG, else as a pod, else by ~/.kube/config (as kubectl).

    Raises ValueError that begins with the flag's name.
    """
    try:
        if named := os.environ.get("KUBECONFIG"):
            config = KubeConfig.from_file(named)
        else:
            config = KubeConfig.from_env(service_account=service_account)
        chosen = config.get()
    except Exception as error:  # of lightkube, PyYAML and msgspec: whatever a file can have wrong
        raise ValueError(
            f"--inference-pool: no access to Kubernetes: {_missing(error, service_account)}"
        ) from error
    if chosen is None or chosen.user is None:
        raise ValueError("--inference-pool: no access to Kubernetes: its configuration names no user")
    return chosen


def _missing(error: Exception, service_account: str) -> str:
    """What would give access, in one line; files say what is wrong with them in several."""
    said = " ".join(str(error).split()) or type(error).__name__
    if named := os.environ.get("KUBECONFIG"):
        return f"KUBECONFIG is {named!r}: {said}"
    if Path(service_account).exists() or Path(DEFAULT_KUBECONFIG).expanduser().exists():
        return said
    return (
        f"no service account of a pod in {service_account}, KUBECONFIG is not set, "
        f"and there is no {DEFAULT_KUBECONFIG}"
    )


# What a client and its credentials fail with: the last three are of exec plugins and what they print.
_UNREACHED = (httpx2.HTTPError, httpx2.InvalidURL, ConfigError, OSError, ValueError, KeyError)


class Cluster:
    """A ClusterApi of one event loop. service_account: the directory of a pod's token and CA."""

    def __init__(self, service_account: str = SERVICE_ACCOUNT) -> None:
        self._service_account = service_account
        self._client: httpx2.AsyncClient | None = None

    async def get(self, path: str, query: Mapping[str, str]) -> bytes:
        """See ClusterApi."""
        try:
            client = await self._ready()
            async with (
                _opened() as extensions,
                client.stream("GET", path, params=dict(query), extensions=extensions) as response,
            ):
                content = await bounded.whole(response, _MAX_PAGE_BYTES)
        except _UNREACHED as error:
            raise _unreached(error) from error
        if response.status_code != httpx2.codes.OK:
            raise _refused(response, content)
        return content

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes]:
        """See ClusterApi. No limit between two reads: the caller bounds the whole."""
        timeout = httpx2.Timeout(_TIMEOUT_S, read=None)
        try:
            client = await self._ready()
            async with (
                _opened() as extensions,
                client.stream(
                    "GET", path, params=dict(query), timeout=timeout, extensions=extensions
                ) as response,
            ):
                if response.status_code != httpx2.codes.OK:
                    raise _refused(response, await bounded.whole(response, _MAX_LINE_BYTES))
                async with aclosing(_lines(response)) as lines:
                    async for line in lines:
                        yield line
        except _UNREACHED as error:
            raise _unreached(error) from error

    async def renew(self) -> None:
        """See ClusterApi: tokens, client certificates and the CA may all have been rotated."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def aclose(self) -> None:
        """See ClusterApi."""
        await self.renew()

    async def _ready(self) -> httpx2.AsyncClient:
        if self._client is None:
            self._client = await asyncio.to_thread(self._made)
        return self._client

    def _made(self) -> httpx2.AsyncClient:
        """Read the files and make a client, which blocks for milliseconds."""
        config = credentials(self._service_account)
        client = AsyncClient(config, ConnectionParams(timeout=httpx2.Timeout(_TIMEOUT_S)))
        client.headers.update(bounded.IDENTITY)
        # Before anybody reads a body: httpx2 itself reads, and would unpack, that of a 401 to ask once more.
        client.event_hooks = {"response": [_unpacked]}
        return client


@asynccontextmanager
async def _opened() -> AsyncIterator[dict[str, Any]]:
    """The extensions of one request, whose connection is closed at the end if its handshake is not over.

    Of what can end a handshake, httpcore2 2.16 does not close it for a cancellation (_backends/anyio.py,
    start_tls): it would be open until the garbage collector comes.
    """
    opened: list[Any] = []  # httpcore2.AsyncNetworkStream

    async def trace(event: str, told: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            opened.append(told["return_value"])
        elif event.startswith(("connection.start_tls.complete", "http")):
            opened.clear()

    try:
        yield {"trace": trace}
    finally:
        for stream in opened:
            await stream.aclose()


async def _unpacked(response: httpx2.Response) -> None:
    bounded.refuse_packed(response.headers)


async def _lines(response: httpx2.Response) -> AsyncGenerator[bytes]:
    """The lines of a watch, split at line feeds alone. Raises ClusterError for one without end."""
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        if len(rest) > _MAX_LINE_BYTES:
            raise ClusterError(0, f"a line of the watch is over {_MAX_LINE_BYTES} bytes")
    if rest.strip():
        raise ClusterError(None, "the watch ended within a line")


def _refused(response: httpx2.Response, content: bytes) -> ClusterError:
    status, content = response.status_code, masked(content, masking.credentials(response.request.headers))
    # Its message says what is missing ("... is forbidden: User ... cannot watch resource ...").
    try:
        said = msgspec.json.decode(content, type=Status).message
    except msgspec.DecodeError:  # of something in between, which speaks no Kubernetes
        said = content.decode("utf-8", "replace")
    return ClusterError(status, f"the Kubernetes API answered {status}: {' '.join(said.split())[:500]}")


def _unreached(error: Exception) -> ClusterError:
    return ClusterError(None, f"{type(error).__name__}: {error}")
