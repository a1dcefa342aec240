"""Listens to a chat answer on its way to the client: what was said, and where its blocks are.

Rule: pure, and beside the bytes: nothing is held back or changed. What is kept is bounded; an answer that is
longer, or of a kind that a chat template may not render as the model wrote it, is given up, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

# Some 100,000 tokens of text, or 4,000 tokens as JSON with logprobs; far more than an answer in a dialogue.
MAX_BYTES = 1024 * 1024


class Lost(StrEnum):
    """Why an answer is given up."""

    TOO_LONG = "answer_too_long"
    UNREADABLE = "answer_unreadable"
    NOT_PLAIN = "answer_not_plain_text"
    STOPPED = "answer_cut_at_stop_string"
    NO_PARAMS = "answer_without_params"


class Heard:
    """`feed` takes the answer's bytes, JSON or SSE, however split; then `params` and `text` are there.

    lost: why they are not.
    """

    __slots__ = ("_bytes", "_pieces", "_streamed", "_texts", "lost", "params")

    def __init__(self) -> None:
        self.lost: Lost | None = None
        self.params: Mapping[str, Any] = {}
        self._texts: list[str] = []
        # The document so far, or the stream's unfinished line; _bytes: of that and of the texts.
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._streamed: bool | None = None

    @property
    def text(self) -> str:
        """What was said."""
        return "".join(self._texts)

    def feed(self, piece: bytes) -> None:
        """The next bytes."""
        if self.lost is not None or not piece:
            return
        if self._streamed is None:
            self._streamed = not piece.lstrip().startswith(b"{")
        if self._streamed:
            cut = piece.rfind(b"\n") + 1
            if cut:
                done = b"".join([*self._pieces, piece[:cut]])
                self._bytes -= sum(map(len, self._pieces))
                self._pieces.clear()
                piece = piece[cut:]
                self._lines(done)
        self._hold(piece)

    def end(self) -> None:
        """The answer is complete."""
        if self.lost is None and not self._streamed:
            self._take(b"".join(self._pieces), "message")
        if self.lost is None and not self.params:
            self._give_up(Lost.NO_PARAMS)

    def _lines(self, lines: bytes) -> None:
        for line in lines.splitlines():
            if line.startswith(b"data:") and self.lost is None:
                event = line[5:].strip()
                if event != b"[DONE]":
                    self._take(event, "delta")

    def _take(self, text: bytes, part: str) -> None:
        """One document or event."""
        try:
            event = msgspec.json.decode(text)
            params = event.get("kv_transfer_params")
            choices = event.get("choices") or ()
            for choice in choices:
                self._choice(choice, choice.get(part) or {})
        except (msgspec.DecodeError, AttributeError, TypeError, RecursionError):
            self._give_up(Lost.UNREADABLE)
            return
        if params and isinstance(params, dict) and self.lost is None:
            self.params = params

    def _choice(self, choice: Mapping[str, Any], part: Mapping[str, Any]) -> None:
        content = part.get("content") or ""
        # Tool calls, reasoning, refusals, sounds: parsed out of the text, and rendered anew, or not at all.
        plain = not any(value for name, value in part.items() if name not in ("role", "content"))
        ends = choice.get("finish_reason") in (None, "stop", "length")
        if choice.get("index") or not plain or not ends or not isinstance(content, str):
            self._give_up(Lost.NOT_PLAIN)
        elif choice.get("stop_reason") is not None:
            # What stopped it was computed, and is not in the text (vLLM 0.32 ChatCompletionResponse).
            self._give_up(Lost.STOPPED)
        elif content:
            self._texts.append(content)
            self._hold_bytes(len(content))

    def _hold(self, piece: bytes) -> None:
        if piece and self.lost is None:
            self._pieces.append(piece)
            self._hold_bytes(len(piece))

    def _hold_bytes(self, count: int) -> None:
        self._bytes += count
        if self._bytes > MAX_BYTES:
            self._give_up(Lost.TOO_LONG)

    def _give_up(self, why: Lost) -> None:
        self.lost, self.params = why, {}
        self._texts.clear()
        self._pieces.clear()
