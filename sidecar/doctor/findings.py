"""The vocabulary of a diagnosis: findings with their severity, and what the worst of them means to a script.

Rule: pure. A finding says one thing about named peers, and what to change where something can be changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How bad it is. UNTOLD: neither good nor bad, nobody says; NOTE: to know, nothing is wrong."""

    FINE = 0
    UNTOLD = 1
    NOTE = 2
    WARNING = 3
    ERROR = 4

    @property
    def word(self) -> str:
        """As reports call it."""
        return _WORDS[self]


_WORDS = {
    Severity.FINE: "ok",
    Severity.UNTOLD: "not told",
    Severity.NOTE: "note",
    Severity.WARNING: "warning",
    Severity.ERROR: "error",
}

# The status of a diagnosis by its worst finding; 2 is wrong usage, as of every command here.
EXIT_FINE, EXIT_WRONG_USAGE = 0, 2
_EXITS = {Severity.WARNING: 1, Severity.ERROR: 3}


@dataclass(frozen=True, slots=True)
class Finding:
    """check: what was looked at. about: names of peers, of a pull the source first.

    value: what was found, in a word or two, for a table. says: the same as a sentence. change: what would
    make it right, as a sentence; empty where nothing is to be done.
    """

    severity: Severity
    check: str
    about: tuple[str, ...]
    value: str
    says: str = ""
    change: str = ""


def worst(findings: Iterable[Finding]) -> Severity:
    """The highest severity; FINE without findings."""
    return max((finding.severity for finding in findings), default=Severity.FINE)


def exit_code(findings: Iterable[Finding]) -> int:
    """0 up to notes, 1 with warnings, 3 with errors."""
    return _EXITS.get(worst(findings), EXIT_FINE)


def fine(check: str, about: str, value: str) -> Finding:
    """One that is as it should be."""
    return Finding(Severity.FINE, check, (about,), value)


def untold(check: str, about: str, why: str) -> Finding:
    """One that nobody tells. why: as a sentence, with what would make it told."""
    return Finding(Severity.UNTOLD, check, (about,), "not told", why)
