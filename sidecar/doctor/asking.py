"""Asks one peer what it tells of itself, and for two answers that show what it does.

Rule: acts; bounded, and a question without an answer leaves its fact untold instead of ending the rest.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from statistics import median
from time import monotonic
from typing import Any

import httpx

from sidecar.doctor.counted import Counted, counted, rise
from sidecar.doctor.operators import operators_of
from sidecar.doctor.order import Fresh, Order
from sidecar.doctor.ports import tried
from sidecar.doctor.reading import configuration, families, fingerprint
from sidecar.doctor.told import Alone, Peer, Told
from sidecar.remote.client import Remote
from sidecar.remote.errors import NoAnswer, Refused, RemoteError
from sidecar.remote.prompts import PATH
from sidecar.remote.settling import settled
from sidecar.remote.texts import Unreadable, decoded, shown

# As many as show what an exchange takes, without what only the first one does.
_ROUND_TRIPS = 3
# A sidecar gives its engine 0.8 s to answer, which busy cores miss now and then: as many looks as a kubelet
# takes before a pod counts as not ready (failureThreshold's default), sooner after one another.
_UNREADY_LOOKS = 3
UNREADY_S = 1.0
# Enough for two texts of different weights to differ, and fewer than any block.
_ANSWER_TOKENS = 8
# An answer so long fills at least one block of its own, whatever is left of the prompt's last one.
_BLOCKS_ANSWERED = 2
_USUAL_BLOCK_TOKENS = 16
# Statuses of a body that is not taken: token ids where only texts are.
_NOT_TAKEN = frozenset((400, 415, 422))

# What is wrong with one peer's answers is that peer's, of a kind that nobody thought of, too.
_UNREADABLE = (RemoteError, ValueError, OverflowError, RecursionError)


async def facts_of(peer: Peer, remote: Remote, order: Order) -> Told:
    """What it tells without computing anything."""
    try:
        rtt_ms = await _round_trip_ms(remote)
        facts = await remote.facts()
        metrics = (await remote.metrics()).decode("utf-8", "replace")
        told = Told(peer, facts=facts, families=families(metrics), rtt_ms=rtt_ms)
        path = "/ready" if facts.through_sidecar else "/health"
        unready = await _unready(remote, path)
        told = replace(
            told,
            unready=None if unready is None else _why_unready(path, unready),
            redirects=unready is not None and unready.is_redirect,
            ahead_s=await _ahead_s(remote),
            configuration=await _configuration(remote),
        )
    except _UNREADABLE as error:
        return Told(peer, failure=_short(error, peer), ports=await tried(peer, 1))
    ports = await tried(peer, told.families.ranks)
    if peer.operators is None or not facts.through_sidecar:
        return replace(told, ports=ports)
    sidecar, failure = await operators_of(peer.operators, order.trust, order.timeout_s)
    return replace(told, ports=ports, sidecar=sidecar, operators_failure=failure)


async def answers_of(told: Told, remote: Remote, prompt: Fresh) -> tuple[Told, bool]:
    """The same with what its answers show, and whether it takes texts only."""
    if told.failure or told.unready:
        return replace(told, alone_failure=told.failure or told.unready), False
    try:
        alone, as_text = await _alone(told, remote, prompt)
        told = replace(told, alone=alone)
        return replace(told, answers_kept=await _answers_kept(told, remote, prompt, as_text=as_text)), as_text
    except _UNREADABLE as error:
        return replace(told, alone_failure=_short(error, told.peer)), False


async def _round_trip_ms(remote: Remote) -> float:
    times: list[float] = []
    for _ in range(_ROUND_TRIPS):
        began_s = monotonic()
        await remote.healthy()
        times.append((monotonic() - began_s) * 1000)
    return median(times)


async def _unready(remote: Remote, path: str) -> httpx.Response | None:
    """The answer that says so each time that it is asked; one that names another URL says it at once."""
    looks = 0
    while not (answer := await remote.get(path)).is_success:
        looks += 1
        if answer.is_redirect or looks == _UNREADY_LOOKS:
            return answer
        await asyncio.sleep(UNREADY_S)
    return None


def _why_unready(path: str, answer: httpx.Response) -> str:
    """In its own words if it has any. Of a Location only the scheme is shown: the rest may hold a secret."""
    if answer.is_redirect:
        to = " to an https URL" if answer.headers.get("location", "").lower().startswith("https:") else ""
        return f"{path} answers {answer.status_code}{to}"
    message = _object(_decoded(answer)).get("message")
    if not isinstance(message, str):
        return f"{path} answers {answer.status_code}"
    return shown(message).removeprefix("not ready: ")


async def _ahead_s(remote: Remote) -> float | None:
    """By the middle of an exchange; the header has whole seconds."""
    before = datetime.now(UTC)
    answer = await remote.get("/version")
    middle = before + (datetime.now(UTC) - before) / 2
    try:
        date = parsedate_to_datetime(answer.headers["date"])
        return (date - middle).total_seconds() + 0.5  # cut off to a second, half of one on average
    except (KeyError, ValueError, TypeError):
        return None


async def _configuration(remote: Remote) -> Any:
    answer = await remote.get("/server_info?config_format=json")
    return configuration(_decoded(answer)) if answer.is_success else None


def _decoded(answer: httpx.Response) -> Any:
    """None for what is no JSON."""
    try:
        return decoded(answer.content)
    except Unreadable:
        return None


async def _alone(told: Told, remote: Remote, prompt: Fresh) -> tuple[Alone, bool]:
    """Its answer without a directive. Raises RemoteError."""
    as_text = False
    before = counted(await remote.metrics())
    try:
        content, _ = await completed(remote, told, prompt.form(as_text=False), _ANSWER_TOKENS)
    except Refused as refused:
        if refused.status not in _NOT_TAKEN:
            raise
        as_text = True
        content, _ = await completed(remote, told, prompt.form(as_text=True), _ANSWER_TOKENS)
    risen = await risen_since(before, remote, told, standing("stored_bytes"))
    usage = _object(content.get("usage"))
    choices = content.get("choices")
    choice = _object(choices[0]) if isinstance(choices, list) and choices else {}
    alone = Alone(
        prompt_tokens=_prompt_tokens(usage.get("prompt_tokens"), None if as_text else len(prompt.ids)),
        text=shown(str(choice.get("text") or "")),
        details=isinstance(usage.get("prompt_tokens_details"), dict),
        stored_bytes=risen.stored_bytes,
        pulled_bytes=risen.pulled_bytes,
        fingerprint=fingerprint(content.get("system_fingerprint")),
        faults=risen.of("stored_bytes", "pulled_bytes"),
    )
    return alone, as_text


def _prompt_tokens(told: Any, sent: int | None) -> int | None:
    """As usage tells; None for what cannot be. sent: token ids, which an engine counts as they are."""
    if not isinstance(told, int) or isinstance(told, bool) or told < 1:
        return None
    return told if sent in (None, told) else None


async def _answers_kept(told: Told, remote: Remote, prompt: Fresh, *, as_text: bool) -> bool | None:
    """Whether more was stored than for a prompt of the same length with a short answer."""
    alone, block = told.alone, told.facts.block_tokens or _USUAL_BLOCK_TOKENS
    if alone is None or not alone.stored_bytes:
        return None
    before = counted(await remote.metrics())
    await completed(remote, told, prompt.shuffled().form(as_text=as_text), _BLOCKS_ANSWERED * block)
    risen = await risen_since(before, remote, told, standing("stored_bytes", alone.stored_bytes))
    if risen.stored_bytes is None or risen.stored_bytes < alone.stored_bytes:
        return None  # not all of one of the two is counted
    return risen.stored_bytes > alone.stored_bytes


def standing(name: str, least: float = 0.0) -> Callable[[Counted], object]:
    """Of counters' rises whether one stands: what it is once it is more than none and `least` at least.

    One that cannot be used stands: it is not waited for.
    """

    def of(now: Counted) -> object:
        risen = getattr(now, name) or 0.0
        return now.of(name) or (risen if risen >= least else 0.0)

    return of


async def risen_since(
    before: Counted, remote: Remote, told: Told, of: Callable[[Counted], object]
) -> Counted:
    """How far the counters have risen once what is looked at has, and stands.

    An engine without tiers counts none of this, so that there is nothing to wait for.
    """

    async def now() -> Counted:
        return rise(before, counted(await remote.metrics()), tiering=told.families.tiering)

    return await (settled(now, of) if told.families.tiering else now())


async def completed(
    remote: Remote, told: Told, prompt: Any, max_tokens: int
) -> tuple[Mapping[str, Any], httpx.Headers]:
    """A whole answer, decoded, with its headers. Raises RemoteError."""
    fields = {
        "model": told.facts.model or "",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    answer = await remote.post(PATH, json.dumps(fields, separators=(",", ":")).encode(), {})
    try:
        return _object(decoded(answer.content)), answer.headers
    except Unreadable as why:
        raise NoAnswer(f"{remote.place.url}: an answer that is no completion: {why}") from None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _short(error: Exception, peer: Peer) -> str:
    """Without the URL, which stands beside it."""
    if not isinstance(error, RemoteError):
        return f"an answer that cannot be read: {type(error).__name__}"
    return str(error).removeprefix(f"{peer.place.url}: ")
