"""The response to a generating request: runs its jobs in the core and writes the answer, whole or as events.

Rule: it runs as long as the client is there; when the client goes, at any moment, its jobs are aborted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing
from datetime import UTC, datetime

from fastapi import Response
from starlette.types import Receive, Scope, Send

from sidecar.lab.answers import Answer, Answered, Json, Spoken, Usage
from sidecar.lab.asks import COMPLETIONS, GENERATE, MESSAGES, Ask
from sidecar.lab.clock import for_ever
from sidecar.lab.core import Core
from sidecar.lab.faults import ApiError, EngineDied
from sidecar.lab.jobs import Job, Step
from sidecar.lab.run import Run
from sidecar.lab.streams import Stream, encode_json, error_event

_WITHOUT_CREATED = (COMPLETIONS, GENERATE)
"""APIs whose usage does not say what was newly cached (vLLM 0.32)."""

Listen = Callable[[int, Step, Run], Awaitable[None]]


class Generating(Response):
    """Answers `ask` by `core`: as a whole shaped by `answer`, or by `stream` when there is one."""

    def __init__(self, core: Core, ask: Ask, answer: Answer, stream: Stream | None) -> None:
        super().__init__()
        self._core, self._ask, self._answer, self._stream = core, ask, answer, stream
        self._created_s = int(datetime.now(UTC).timestamp())
        self._completion_tokens = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI side."""
        work = self._send_events(self._stream, send) if self._stream else self._send_whole(send)
        await while_connected(receive, work)

    async def _send_whole(self, send: Send) -> None:
        try:
            spoken = [await self._speak(i, job, _silently) for i, job in enumerate(self._ask.jobs)]
            status, body = 200, self._answer(self._answered(spoken))
        except ApiError as error:
            status, body = error.status, error.body(anthropic=self._ask.api is MESSAGES)
        except EngineDied:
            await for_ever()  # the connection is being reset
        await send_json(send, status, body)

    async def _send_events(self, stream: Stream, send: Send) -> None:
        """The head goes out before anything is computed, as Starlette's StreamingResponse does it in vLLM."""
        await send(_head(200, [(b"content-type", b"text/event-stream; charset=utf-8")]))
        begun = False

        async def write(events: Iterable[bytes]) -> None:
            for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})

        async def listen(index: int, step: Step, run: Run) -> None:
            nonlocal begun
            usage = self._usage(run.cached_tokens, run.created_tokens)
            if not begun:
                begun = True
                await write(stream.begin(Answered(self._ask, self._created_s, (), usage)))
            await write(stream.step(index, step, usage))

        try:
            spoken = [await self._speak(i, job, listen) for i, job in enumerate(self._ask.jobs)]
            await write(stream.end(self._answered(spoken)))
        except ApiError as error:
            await write([error_event(error)])
        except EngineDied:
            await for_ever()  # the connection is being reset
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _speak(self, index: int, job: Job, listen: Listen) -> Spoken:
        """Runs one job; `listen` hears every step."""
        text, last = "", None
        async with Run(self._core, job) as run:
            await run.prefill()
            async with aclosing(run.steps()) as steps:
                async for step in steps:
                    text, last = text + step.text, step
                    self._completion_tokens += 1
                    await listen(index, step, run)
        assert last is not None, "an answer has at least one token"
        assert last.finish_reason is not None, "the last step says why it is the last"
        return Spoken(
            text=text,
            token_ids=tuple(run.token_ids),
            prompt_token_ids=job.prompt,
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            cached_tokens=run.cached_tokens,
            created_tokens=run.created_tokens,
            kv_transfer_params=run.kv_transfer_params,
        )

    def _answered(self, spoken: list[Spoken]) -> Answered:
        usage = self._usage(spoken[0].cached_tokens, spoken[0].created_tokens)
        return Answered(self._ask, self._created_s, spoken, usage)

    def _usage(self, cached_tokens: int, created_tokens: int) -> Usage:
        return Usage(
            prompt_tokens=sum(len(job.prompt) for job in self._ask.jobs if job.choice == 0),
            completion_tokens=self._completion_tokens,
            cached_tokens=cached_tokens,
            created_tokens=None if self._ask.api in _WITHOUT_CREATED else created_tokens,
            details=self._core.config.enable_prompt_tokens_details,
        )


async def while_connected(receive: Receive, work: Coroutine[object, object, None]) -> None:
    """Runs `work` until it is done, or cancels it when the client disconnects."""

    async def watch(running: asyncio.Task[None]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        running.cancel()

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(work)
        watching = tasks.create_task(watch(running))
        running.add_done_callback(lambda _: watching.cancel())


async def send_json(send: Send, status: int, body: Json) -> None:
    """A whole JSON answer."""
    encoded = encode_json(body)
    length = str(len(encoded)).encode()
    await send(_head(status, [(b"content-length", length), (b"content-type", b"application/json")]))
    await send({"type": "http.response.body", "body": encoded, "more_body": False})


def _head(status: int, headers: list[tuple[bytes, bytes]]) -> dict[str, object]:
    return {"type": "http.response.start", "status": status, "headers": headers}


async def _silently(index: int, step: Step, run: Run) -> None:
    """Hears nothing."""
