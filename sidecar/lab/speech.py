"""The text of an answer as it grows, with stop strings.

Rule: text that could still turn out to be the beginning of a stop string is held back.
"""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.lab.tokens import decode


class Speech:
    """Text from token ids, ended by any of `stop` (which is not part of the text)."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held_back = max(map(len, self._stop), default=1) - 1
        self._text = ""
        self._said = 0
        self.stopped_by: str | None = None

    def hear(self, token_id: int) -> None:
        """One more token; sets `stopped_by` when a stop string is complete."""
        searched_from = max(0, len(self._text) - self._held_back)
        self._text += decode((token_id,))
        found = [(at, s) for s in self._stop if (at := self._text.find(s, searched_from)) >= 0]
        if found:
            at, self.stopped_by = min(found)
            self._text = self._text[:at]

    def say(self, *, last: bool) -> str:
        """The text not said yet, without what is held back unless this is the `last` time."""
        end = len(self._text) if last else max(self._said, len(self._text) - self._held_back)
        text = self._text[self._said : end]
        self._said = end
        return text
