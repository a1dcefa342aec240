"""Parses the command lines of `explain`, `doctor`, `calibrate` and `lab`: what is wrong is one line.

Rule: ends the program, with the shell's status for wrong usage, as argparse does. Of what nobody knows only
flags' names are repeated: the rest of a header that lacks its quotes is a credential.
"""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

WRONG_USAGE = 2


class Parser(argparse.ArgumentParser):
    """argparse's, without the usage before what is wrong, and with the flag's name first."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """See argparse; what nobody knows is named without its values."""
        known, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(_named(unknown))}")
        return known

    def error(self, message: str) -> NoReturn:
        """Say it and end."""
        self.exit(WRONG_USAGE, f"{self.prog}: {message.removeprefix('argument ')}\n")


def _named(unknown: Sequence[str]) -> list[str]:
    flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
    words = len(unknown) - len(flags)
    if not words:
        return flags
    return [*flags, f"{words} {'word' if words == 1 else 'words'} (a value with blanks needs quotes)"]
