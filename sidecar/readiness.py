"""Says whether clients are to be sent here now (`GET /ready`); `GET /health` says only that we live.

Rule: acts; asks an engine's own `/health`, bounded in time, once for all who ask at the same moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

import httpx
from fastapi import Response

from sidecar import problem
from sidecar.endpoint import Endpoint
from sidecar.engine_tls import EngineTLS
from sidecar.transport import TLS

# A kubelet waits 1 s by default (timeoutSeconds): the reason is to arrive before it gives up.
ENGINE_TIMEOUT_S = 0.8

# What `--enable-tls` calls the engines that are asked.
_STAGE = "decoder"

Condition = Callable[[], str | None]
"""Why not now, as the end of a sentence to an operator; None when nothing is in the way."""


@dataclass(slots=True)
class Readiness:
    """Whether these engines answer and every condition holds.

    conditions: looked at first; the list may grow after this is made, and be shared. tls: towards the
    engines, which are decoders.
    """

    engines: Sequence[Endpoint]
    tls: EngineTLS
    conditions: Sequence[Condition] = ()
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _asked_s: float = 0.0
    _said: str | None = None

    async def answer(self) -> Response:
        """200 without content, or 503 with the reason as any error of ours tells it."""
        reason = await self.reason()
        if reason is None:
            return Response(status_code=200)
        content = problem.body(503, f"not ready: {reason}")
        headers = {name.decode(): value.decode() for name, value in problem.headers(503, content)}
        return Response(content, 503, headers)

    async def reason(self) -> str | None:
        """Why clients are not to be sent here; None when they are."""
        for condition in self.conditions:
            if reason := condition():
                return reason
        began_s = monotonic()
        async with self._lock:
            if self._asked_s <= began_s:  # else what was asked while this one waited is as new
                self._asked_s = monotonic()
                self._said = await self._engines_reason()
            return self._said

    async def _engines_reason(self) -> str | None:
        tls = self.tls.towards(_STAGE) if self.tls.secures(_STAGE) else None
        async with (
            httpx.AsyncClient(verify=tls.context if tls else False, trust_env=False, timeout=None) as client,
            asyncio.TaskGroup() as group,
        ):
            asking = [group.create_task(_engine_reason(client, engine, tls)) for engine in self.engines]
        return next((reason for task in asking if (reason := task.result())), None)


async def _engine_reason(client: httpx.AsyncClient, engine: Endpoint, tls: TLS | None) -> str | None:
    named = {"sni_hostname": tls.server_name} if tls and tls.server_name else {}
    url = f"{'https' if tls else 'http'}://{engine.netloc}/health"
    try:
        async with (
            asyncio.timeout(ENGINE_TIMEOUT_S),
            client.stream("GET", url, extensions=named) as response,
        ):
            status = response.status_code
    except TimeoutError:
        return f"the engine at {engine.netloc} does not answer within {ENGINE_TIMEOUT_S:g} s"
    except httpx.HTTPError:
        return f"the engine at {engine.netloc} cannot be reached"
    # vLLM says 503 once its core is dead. An engine that knows no /health (404) answers all the same.
    return None if status < 500 else f"the engine at {engine.netloc} says {status}"
