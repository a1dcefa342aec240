"""The cache of answers that may be asked once for many requests."""

from __future__ import annotations

import pytest

from sidecar import replies
from sidecar.body import Body
from sidecar.endpoint import Endpoint
from sidecar.plan import Leg, Reply, Role
from sidecar.replies import Replies, key_of


def question(host: str, path: bytes = b"/query") -> Leg:
    return Leg(Role.LOOKUP, Endpoint(host, 8998), b"GET", path, (), b"")


def reply(text: bytes) -> Reply:
    return Reply(200, b"OK", (), text, Body.parse(text))


def test_an_answer_is_for_its_target_and_path() -> None:
    cache = Replies()
    cache.keep(question("a"), reply(b'{"a":1}'), 60)
    assert cache.get(question("a")) == reply(b'{"a":1}')
    assert cache.get(question("b")) is None
    assert cache.get(question("a", b"/other")) is None


def test_an_answer_ends_after_its_time_or_when_it_is_forgotten() -> None:
    cache = Replies()
    cache.keep(question("a"), reply(b"{}"), 0)
    assert cache.get(question("a")) is None
    cache.keep(question("a"), reply(b"{}"), 60)
    cache.forget([key_of(question("a")), key_of(question("b"))])
    assert cache.get(question("a")) is None


def test_the_oldest_goes_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "MAX_ENTRIES", 2)
    cache = Replies()
    for host in ("a", "b", "a", "c"):
        cache.keep(question(host), reply(b"{}"), 60)
    assert [cache.get(question(host)) is not None for host in ("a", "b", "c")] == [True, False, True]
