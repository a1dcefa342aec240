"""What an engine is asked to do: one prompt, one answer.

Rule: values only; the HTTP side makes them, the core runs them.
"""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.lab.kvparams import NOTHING, Directive

LONGEST_ANSWER_TOKENS = 1024
"""An answer that may end by itself ends here at the latest (or at its minimum): so requests without a limit
need not set the whole cache aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Limits of an answer in tokens, and what ends it early."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()

    @property
    def most_tokens(self) -> int:
        """The longest answer that can come of this, in tokens."""
        if self.ignore_eos:
            return self.max_tokens
        return min(self.max_tokens, max(self.min_tokens, LONGEST_ANSWER_TOKENS) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One prompt and the choice-th answer to it; `request_id` is vLLM's internal id, with a random tail."""

    request_id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    choice: int = 0
    kv: Directive = NOTHING
    salt: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One generated token and the text that can be said by now; the last one says why the answer ended."""

    token_id: int
    text: str
    finish_reason: str | None = None
    stop_reason: str | int | None = None
