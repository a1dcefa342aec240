"""Keeps what each scenario moved, for the table in the README.

Rule: one JSON line per note in `LOGS`/figures.jsonl.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.vllm.places import LOGS


@dataclass(frozen=True, slots=True)
class Figures:
    """The notes of one test against one kind of engine."""

    test: str
    engines: str

    def note(self, **figures: Any) -> None:
        """Write down some figures."""
        LOGS.mkdir(parents=True, exist_ok=True)
        with (LOGS / "figures.jsonl").open("a") as file:
            file.write(
                json.dumps({"test": self.test, "engines": self.engines, **figures}, default=str) + "\n"
            )
