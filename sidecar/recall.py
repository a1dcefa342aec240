"""Remembers for a while what the decoder holds of each conversation's last turn.

Rule: acts only in looking at the clock, and once for a random key. Bounded in entries and bytes. An entry is
given out once: a prefiller that reads the blocks frees them, and read again they would be another prompt's.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from sidecar.call import Call
from sidecar.heard import Heard
from sidecar.routing import Route
from sidecar.turns import Conversation, Keep, Turn, conversation, turn_of

if TYPE_CHECKING:
    from sidecar.settings import Settings

# vLLM 0.32 declines to read blocks that expire within 5 s (nixl/pull_worker.py), and a prefill may queue
# before it reads.
_MARGIN_S = 10.0
# Of an entry besides its params: the two digests, the object, its place in the table.
_ENTRY_BYTES = 600
# The longest key of BLAKE2b (RFC 7693 section 2.1).
_SECRET_BYTES = 64
_CHAT = "chat_completions"


@dataclass(frozen=True, slots=True)
class Bounds:
    """`--bidirectional-kv-ttl`, `--bidirectional-kv-entries` and `--bidirectional-kv-bytes`."""

    ttl_s: float
    entries: int
    bytes: int


class Turns:
    """The memory. counts: how often what happened, by a short label."""

    def __init__(self, bounds: Bounds, secret: bytes, now_s: Callable[[], float] = monotonic) -> None:
        self._bounds = bounds
        self._secret = secret
        self._now_s = now_s
        self._kept: dict[bytes, tuple[float, Turn]] = {}
        self._bytes = 0
        self.counts: Counter[str] = Counter()

    @property
    def remembered(self) -> int:
        """How many turns there are."""
        return len(self._kept)

    def looked_up(self, call: Call, route: Route) -> Call:
        """The call as a turn of a conversation, with the earlier turn that it extends, which is forgotten.

        A source that the endpoint picker named is pulled from instead.
        """
        if route.prefiller is None or call.api.name != _CHAT:
            return call
        talk = conversation(call.body, call.headers, call.path, self._secret)
        if talk is not None and route.source is None:
            talk = self._extended(talk)
        return replace(call, conversation=talk)

    def listen(self, keep: Keep) -> Listening:
        """Listen to the answer that ends a turn."""
        return Listening(self, keep)

    def keep(self, key: bytes, turn: Turn, params: Mapping[str, Any]) -> str:
        """Remember a turn, less long than its blocks are kept where their engine says for how long.

        What came of it: "kept", or "expired" already.
        """
        now_s = self._now_s()
        until_s = now_s + self._bounds.ttl_s
        # The decoder is on this machine, so its clock is ours (vLLM 0.32: its scheduler's perf_counter).
        expiry_s = params.get("remote_blocks_expiry_time")
        if isinstance(expiry_s, float) and now_s < expiry_s:
            until_s = min(until_s, expiry_s - _MARGIN_S)
        if until_s <= now_s:
            return self.counted("expired")
        self._drop(key)
        self._kept[key] = (until_s, turn)
        self._bytes += _size(turn)
        self._make_room(now_s)
        return self.counted("kept")

    def counted(self, label: str) -> str:
        """The label, counted."""
        self.counts[label] += 1
        return label

    def forget(self, engine_id: str) -> None:
        """A read from this engine failed: it may have been started anew, and then none of its blocks is."""
        for key in [key for key, (_, turn) in self._kept.items() if turn.engine_id == engine_id]:
            self._drop(key)
            self.counts["forgotten"] += 1

    def _extended(self, talk: Conversation) -> Conversation:
        for earlier in talk.earlier:
            until_s, turn = self._kept.get(earlier.key, (0.0, None))
            if turn is None:
                continue
            self._drop(earlier.key)
            if until_s > self._now_s():
                self.counts["found"] += 1
                return replace(talk, turn=turn, answer=earlier.answer)
            self.counts["expired"] += 1
        return talk

    def _make_room(self, now_s: float) -> None:
        """Drop from the oldest on, first what is over anyway."""
        while self._kept:
            key, (until_s, _) = next(iter(self._kept.items()))
            over = len(self._kept) > self._bounds.entries or self._bytes > self._bounds.bytes
            if not over and until_s > now_s:
                return
            self._drop(key)
            self.counts["evicted" if until_s > now_s else "expired"] += 1

    def _drop(self, key: bytes) -> None:
        entry = self._kept.pop(key, None)
        if entry is not None:
            self._bytes -= _size(entry[1])


class Listening:
    """Beside one answer: `feed` takes its bytes as they leave, `end` remembers the turn that it ends."""

    __slots__ = ("_heard", "_keep", "_turns", "feed")

    def __init__(self, turns: Turns, keep: Keep) -> None:
        self._turns = turns
        self._keep = keep
        self._heard = heard = Heard()
        self.feed = heard.feed

    def end(self) -> str:
        """The answer has gone out whole. What came of its turn, by a short label."""
        heard, turns = self._heard, self._turns
        heard.end()
        if heard.lost is not None:
            return turns.counted(heard.lost)
        turn = turn_of(self._keep, heard.params)
        if turn is None:
            return turns.counted("params_unusable")
        return turns.keep(self._keep.conversation.key(heard.text), turn, heard.params)


def remembering(settings: Settings) -> Turns | None:
    """The memory that the settings ask for, if they do."""
    if not settings.enable_bidirectional_kv_xfer:
        return None
    bounds = Bounds(
        settings.bidirectional_kv_ttl_s, settings.bidirectional_kv_entries, settings.bidirectional_kv_bytes
    )
    return Turns(bounds, os.urandom(_SECRET_BYTES))


def _size(turn: Turn) -> int:
    return len(turn.params) + _ENTRY_BYTES
