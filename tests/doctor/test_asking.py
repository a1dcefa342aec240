"""What a peer does not answer leaves its facts untold; one that takes no token ids is asked in words."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from sidecar.doctor.asking import answers_of, facts_of
from sidecar.doctor.checks import examined
from sidecar.doctor.order import Fresh, Order
from sidecar.doctor.told import Families
from sidecar.remote.client import Remote, Trust
from tests.doctor.made import peer, told

ORDER = Order((peer(),), Trust(), 64, 2, 5.0, verify=False)


def remote(answer: Any) -> Remote:
    """A peer that answers by this function."""
    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return Remote(peer().place, client, 5.0)


async def test_one_that_takes_no_token_ids_is_asked_in_words() -> None:
    asked: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, text="")
        body = json.loads(request.content)
        asked.append(body["prompt"])
        if not isinstance(body["prompt"], str):
            return httpx.Response(400, json={"error": {"message": "prompt must be a string"}})
        usage = {"prompt_tokens": 130, "prompt_tokens_details": None}
        return httpx.Response(200, json={"choices": [{"text": " a"}], "usage": usage})

    fresh = Fresh((11, 12))
    found, as_text = await answers_of(told(alone=None, families=told().families), remote(answer), fresh)

    assert asked == [[11, 12], "w11 w12"]
    assert as_text
    assert found.alone is not None
    assert (found.alone.prompt_tokens, found.alone.text, found.alone.details) == (130, " a", False)
    assert found.alone.fingerprint is None
    assert found.answers_kept is None


@pytest.mark.parametrize("tokens", [None, "many", -16, 0, True, 1e3, 3, 10**12])
async def test_usage_that_does_not_count_the_ids_it_was_sent_tells_no_length(tokens: Any) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, text="")
        return httpx.Response(200, json={"choices": [{"text": " a"}], "usage": {"prompt_tokens": tokens}})

    one = told(alone=None, families=Families())
    found, _ = await answers_of(one, remote(answer), Fresh((11, 12)))
    assert found.alone is not None
    assert (found.alone.prompt_tokens, found.kv_token_bytes, found.answers_kept) == (None, None, None)


async def test_a_refusal_is_kept_in_its_own_words_and_without_the_url() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, text="")
        return httpx.Response(401, json={"error": {"message": "who are you"}})

    found, _ = await answers_of(told(alone=None), remote(answer), Fresh((11,)))
    assert (found.alone, found.alone_failure) == (None, "answered 401: who are you")


async def test_one_that_tells_nothing_is_no_failure() -> None:
    found = await facts_of(peer(), remote(lambda _: httpx.Response(404, text="no")), ORDER)
    assert (found.failure, found.facts.model, found.configuration, found.ahead_s) == (None, None, None, None)
    assert found.unready == "/health answers 404"


@pytest.mark.parametrize(("misses", "ready"), [(1, True), (2, True), (3, False)])
async def test_one_that_misses_a_look_is_asked_again(misses: int, ready: bool) -> None:
    looks: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(400, headers={"x-sidecar-error": "bad_request"})
        if request.url.path != "/ready":
            return httpx.Response(200, text="")
        looks.append("look")
        late = {"message": "not ready: the engine does not answer within 0.8 s"}
        return httpx.Response(200) if len(looks) > misses else httpx.Response(503, json=late)

    found = await facts_of(peer(), remote(answer), ORDER)
    assert found.unready == (None if ready else "the engine does not answer within 0.8 s")
    assert len(looks) == min(misses + 1, 3)


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("https://u:secret@h/secret", "/health answers 302 to an https URL"),
        ("/login?secret", "/health answers 302"),
    ],
)
async def test_one_that_redirects_is_asked_once_and_its_url_is_wrong(location: str, says: str) -> None:
    looks: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        looks.append(request.url.path)
        return httpx.Response(302, headers={"location": location})

    found = await facts_of(peer(), remote(answer), ORDER)
    assert (found.unready, found.redirects, looks.count("/health")) == (says, True, 4)  # 3 are round trips
    [ready] = [one for one in examined(found) if one.check == "ready"]
    assert ready.says == f"redirects instead of answering: {says}"
    assert ready.change.startswith("Correct the URL: no redirect is followed.")


async def test_one_that_is_not_there_is_a_failure() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody")

    found = await facts_of(peer(host="127.0.0.1"), remote(answer), ORDER)
    assert found.failure is not None
    assert found.failure.endswith("nobody")
