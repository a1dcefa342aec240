"""`--enable-bidirectional-kv-xfer` on loopback sockets: what a next turn's prefiller is told to read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import pytest

from tests.engines import PARAMS, PREFILLED, Answer, Got, Script, ScriptedEngine, scripted
from tests.serving import CHAT, PREFILLER, Said, Served, post, serving

ON = "--enable-bidirectional-kv-xfer"
SAID = "A block is 16 tokens."
Messages = list[dict[str, Any]]


def rendered(messages: Messages) -> list[int]:
    """A chat template and tokenizer: a header, the text's characters, an end; then the assistant's header."""
    headers = {"user": 1, "assistant": 2}
    return [t for m in messages for t in (headers[m["role"]], *map(ord, m["content"]), 3)] + [2]


def held(messages: Messages, **more: Any) -> dict[str, Any]:
    """What a decoder says of its blocks, as vLLM 0.32 does with bidirectional_kv_xfer."""
    return {
        "do_remote_prefill": False,
        "do_remote_decode": True,
        "remote_block_ids": [[5, 6]],
        "remote_engine_id": "engine-d",
        "remote_request_id": "chatcmpl-d-0",
        "remote_host": "127.0.0.1",
        "remote_port": 5601,
        "remote_num_tokens": len(rendered(messages)) + len(SAID),
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "a_key_of_tomorrow": [1],
        **more,
    }


@dataclass
class Pair:
    """Two engines: what came to the prefiller, and when the decoder sent each event."""

    prefills: list[dict[str, Any]] = field(default_factory=list)
    tokenized: int = 0
    gap_s: float = 0.0
    sent_s: list[float] = field(default_factory=list)
    refuse_reads: int | None = None
    rendered_otherwise: bool = False
    more: dict[str, Any] = field(default_factory=dict)

    async def prefill(self, got: Got, answer: Answer) -> None:
        """Compute one token, or refuse to read."""
        self.prefills.append(got.json)
        if self.refuse_reads and self.read(-1):
            await answer.json({"error": "cannot load"}, self.refuse_reads)
            return
        tokens = rendered(got.json["messages"])
        params = {**PARAMS, "remote_num_tokens": len(tokens)}
        more = {"prompt_token_ids": tokens} if got.json.get("return_token_ids") else {}
        await answer.json({**PREFILLED, "kv_transfer_params": params, **more})

    async def decode(self, got: Got, answer: Answer) -> None:
        """Say SAID, in one document or event by event; or the tokens of a text."""
        if got.target == "/tokenize":
            await self._tokenize(got, answer)
            return
        params = held(got.json["messages"], **self.more)
        if not got.json.get("stream"):
            message = {"role": "assistant", "content": SAID, "tool_calls": []}
            choice = {"index": 0, "message": message, "finish_reason": "stop", "stop_reason": None}
            await answer.json({"id": "d", "choices": [choice], "kv_transfer_params": params})
            return
        await answer.head(headers=[("content-type", "text/event-stream")])
        for event in events(params):
            self.sent_s.append(monotonic())
            await answer.chunk(event)
            await asyncio.sleep(self.gap_s)
        await answer.end()

    async def _tokenize(self, got: Got, answer: Answer) -> None:
        self.tokenized += 1
        body = got.json
        tokens = rendered(body["messages"]) if "messages" in body else [ord(c) for c in body["prompt"]]
        await answer.json({"tokens": [9, *tokens] if self.rendered_otherwise else tokens})

    def read(self, turn: int) -> dict[str, Any] | None:
        """What a prefill was told to read from the decoder; None for nothing."""
        params: dict[str, Any] = self.prefills[turn]["kv_transfer_params"]
        return params if params["remote_engine_id"] else None


def events(params: dict[str, Any]) -> list[bytes]:
    """A stream, the params in its last chunk, as vLLM 0.33 sends them."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": SAID[at : at + 3]} for at in range(0, len(SAID), 3)]
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append(
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "kv_transfer_params": params}
    )
    return [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks] + [b"data: [DONE]\n\n"]


@dataclass
class Pod:
    """A sidecar between the two."""

    pair: Pair
    sidecar: Served
    prefiller: ScriptedEngine

    async def turn(self, messages: Messages, headers: Iterable[tuple[str, str]] = (), **more: Any) -> Said:
        """One request through the prefiller."""
        body = json.dumps({"model": "m", "messages": messages, **more}).encode()
        return await self.sidecar.post(CHAT, body, [(PREFILLER, self.prefiller.netloc), *headers])


@asynccontextmanager
async def pods(*flags: str, pair: Pair | None = None, decode: Script | None = None) -> AsyncIterator[Pod]:
    pair = pair or Pair()
    async with (
        scripted(decode or pair.decode) as decoder,
        scripted(pair.prefill) as prefiller,
        serving(decoder.port, *(flags or (ON,))) as sidecar,
    ):
        yield Pod(pair, sidecar, prefiller)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


FIRST = [user("What is a block?")]
NEXT = [*FIRST, {"role": "assistant", "content": SAID}, user("And a token?")]
NOTHING = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@pytest.mark.parametrize("stream", [False, True])
async def test_the_next_turns_prefiller_reads_what_the_decoder_holds_once(stream: bool) -> None:
    async with pods() as pod:
        assert (await pod.turn(FIRST, stream=stream)).status == 200
        assert (await pod.turn(NEXT, stream=stream)).status == 200
        assert (await pod.turn(NEXT, stream=stream)).status == 200

        roles = {"do_remote_decode": True, "do_remote_prefill": False}
        assert pod.pair.prefills[0]["kv_transfer_params"] == NOTHING
        assert pod.pair.prefills[1]["kv_transfer_params"] == {**held(FIRST), **roles}
        assert pod.pair.prefills[2]["kv_transfer_params"] == NOTHING
        assert pod.pair.tokenized == 2


async def test_every_turn_of_a_conversation_reads_the_last_one() -> None:
    async with pods() as pod:
        messages = FIRST
        for _ in range(4):
            await pod.turn(messages)
            messages = [*messages, {"role": "assistant", "content": SAID}, user("And then?")]

        counts = [(read or {}).get("remote_num_tokens", 0) for read in map(pod.pair.read, range(4))]
        turn_tokens = len(SAID) + len("And then?") + 4
        first_tokens = len(rendered(FIRST)) + len(SAID)
        assert counts == [0, *(first_tokens + turn * turn_tokens for turn in range(3))]


@pytest.mark.parametrize(
    "other",
    [
        {"headers": [("authorization", "Bearer b")]},
        {"headers": []},
        {"model": "lora"},
        {"cache_salt": "s"},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"messages": [user("What is a blocK?"), *NEXT[1:]]},
        {"messages": [NEXT[0], {"role": "assistant", "content": SAID + " "}, NEXT[2]]},
        {"messages": [user("x"), *NEXT]},
    ],
    ids=["tenant", "no tenant", "model", "salt", "tools", "template", "question", "answer", "history"],
)
async def test_nobody_else_reads_it(other: dict[str, Any]) -> None:
    mine: dict[str, Any] = {"messages": NEXT, "headers": [("authorization", "Bearer a")]}
    async with pods() as pod:
        await pod.turn(FIRST, mine["headers"])
        await pod.turn(**{**mine, **other})
        await pod.turn(**mine)

        assert [pod.pair.read(turn) is not None for turn in range(3)] == [False, False, True]


async def test_it_is_read_only_within_its_time() -> None:
    async with pods(ON, "--bidirectional-kv-ttl=60ms") as pod:
        await pod.turn(FIRST)
        await asyncio.sleep(0.1)
        await pod.turn(NEXT)
        assert pod.pair.read(1) is None


async def test_and_only_as_long_as_the_decoder_says_that_it_holds_it() -> None:
    pair = Pair(more={"remote_blocks_expiry_time": monotonic() + 5.0})
    async with pods(pair=pair) as pod:
        await pod.turn(FIRST)
        await pod.turn(NEXT)
        assert pair.read(1) is None


async def test_only_so_many_turns_are_remembered() -> None:
    async with pods(ON, "--bidirectional-kv-entries=1") as pod:
        await pod.turn(FIRST)
        await pod.turn([user("something else")])
        await pod.turn(NEXT)
        assert pod.pair.read(2) is None


async def test_and_only_so_many_bytes() -> None:
    async with pods(ON, "--bidirectional-kv-bytes=100") as pod:
        await pod.turn(FIRST)
        await pod.turn(NEXT)
        assert pod.pair.read(1) is None


async def test_tokens_that_are_not_those_of_the_last_turn_are_computed() -> None:
    pair = Pair(rendered_otherwise=True)
    async with pods(pair=pair) as pod:
        await pod.turn(FIRST)
        answer = await pod.turn(NEXT)
        assert (answer.status, pair.tokenized, pair.read(1)) == (200, 2, None)


async def test_so_are_those_of_a_decoder_that_cannot_tell_them() -> None:
    pair = Pair()

    async def decode(got: Got, answer: Answer) -> None:
        if got.target == "/tokenize":
            await answer.json({"detail": "Not Found"}, 404)
        else:
            await pair.decode(got, answer)

    async with pods(pair=pair, decode=decode) as pod:
        await pod.turn(FIRST)
        assert (await pod.turn(NEXT)).status == 200
        assert pair.read(1) is None


@pytest.mark.parametrize("status", [500, 503])
async def test_a_read_that_fails_is_computed_instead_and_its_engine_is_forgotten(status: int) -> None:
    pair = Pair(refuse_reads=status)
    other = [user("Something else")]
    async with pods(ON, "--prefill-max-retries=3", "--prefill-retry-backoff=1ms", pair=pair) as pod:
        await pod.turn(FIRST)
        await pod.turn(other)
        answer = await pod.turn(NEXT)
        await pod.turn([*other, *NEXT[1:]])

        assert answer.status == 200
        assert [pair.read(turn) is not None for turn in range(5)] == [False, False, True, False, False]


async def test_an_answer_that_the_client_left_is_not_remembered() -> None:
    pair = Pair(gap_s=0.05)
    async with pods(pair=pair) as pod:
        body = json.dumps({"model": "m", "messages": FIRST, "stream": True}).encode()
        async with pod.sidecar.connected() as (reader, writer):
            writer.write(post(CHAT, body, [(PREFILLER, pod.prefiller.netloc)]))
            await reader.readuntil(b"data: ")
        pair.gap_s = 0.0
        await pod.turn(NEXT)
        assert pair.read(1) is None


@pytest.mark.parametrize("flags", [(ON,), ("--kv-connector=nixlv2",)], ids=["on", "off"])
async def test_a_stream_is_neither_changed_nor_delayed(flags: tuple[str, ...]) -> None:
    pair = Pair(gap_s=0.08)
    async with pods(*flags, pair=pair) as pod:
        answer = await pod.turn(FIRST, stream=True)

        assert answer.body == b"".join(events(held(FIRST)))
        # Each event is here long before those that are sent three gaps, a quarter of a second, later.
        assert len(answer.times_s) == len(pair.sent_s)
        assert all(came < sent for came, sent in zip(answer.times_s, pair.sent_s[3:], strict=False))


async def test_a_document_comes_as_the_engine_wrote_it() -> None:
    texts = []
    for flags in ((ON,), ("--kv-connector=nixlv2",)):
        async with pods(*flags) as pod:
            texts.append((await pod.turn(FIRST)).body)
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["kv_transfer_params"] == held(FIRST)


async def test_without_the_flag_nothing_is_asked_and_nothing_read() -> None:
    async with pods("--kv-connector=nixlv2") as pod:
        await pod.turn(FIRST)
        await pod.turn(NEXT)
        assert (pod.pair.tokenized, pod.pair.read(1)) == (0, None)
        assert all("return_token_ids" not in prefill for prefill in pod.pair.prefills)
