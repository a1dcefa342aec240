"""One embedded engine: its core, its HTTP listener, its P2P and NIXL listeners, as one thing that starts and
ends.

Rule: a library object; many live in one event loop, each as separate as processes on loopback addresses.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType

from sidecar.lab.api import build_app
from sidecar.lab.clock import Clock
from sidecar.lab.config import EngineConfig
from sidecar.lab.core import Core
from sidecar.lab.http import HttpListener

logger = logging.getLogger(__name__)


class Engine:
    """A simulated vLLM 0.32. `async with Engine(config) as engine` starts and stops it.

    The ports are the real ones after `start`. `died` says why the engine ended by itself, as the process of a
    real one would: its listeners are closed and its connections reset from then on. `ended` is set at that
    moment.
    """

    def __init__(self, config: EngineConfig | None = None, *, clock: Clock | None = None) -> None:
        self.config = config or EngineConfig()
        self.core = Core(self.config, clock or Clock(self.config.time_scale), self.die)
        self.metrics = self.core.metrics
        self.host, self.p2p_host = self.config.host, self.config.peer_host
        self.port = self.p2p_port = self.nixl_port = 0
        self.died: str | None = None
        self.ended = asyncio.Event()
        self._stopping = False
        self._http = HttpListener(build_app(self.core))

    @property
    def url(self) -> str:
        """Base URL of the HTTP API."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def kv_source(self) -> dict[str, object]:
        """Address of this engine's P2P listener, as `kv_transfer_params` name it."""
        return {"remote_host": self.p2p_host, "remote_port": self.p2p_port}

    async def start(self) -> None:
        """Opens the listeners, HTTP last; raises OSError when an address is taken, with nothing left open."""
        try:
            if self.core.offloading:
                self.p2p_port = await self.core.offloading.open(self.p2p_host, self.config.p2p_port)
            if self.core.nixl:
                self.nixl_port = await self.core.nixl.open(self.p2p_host, self.config.nixl_port)
            self.port = await self._http.open(self.host, self.config.port)
        except OSError:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Ends the engine: running requests are cut off, nothing of it runs afterwards."""
        self._stopping = True
        await self._http.close()
        await self.core.close()

    def die(self, reason: str) -> None:
        """Ends the engine as a crash does: every listener closed, every connection reset. For tests too."""
        if self.died is None and not self._stopping:
            logger.error("engine %s died: %s", self.config.model, reason)
            self.died = reason
            self._http.drop(reset=True)
            self.core.drop()
            self.ended.set()

    async def __aenter__(self) -> Engine:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
