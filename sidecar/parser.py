"""Parses the command lines of `explain`, `doctor`, `calibrate` and `lab`: what is wrong is one line.

Rule: ends the program, with the shell's status for wrong usage, as argparse does.
"""

import argparse
from typing import NoReturn

WRONG_USAGE = 2


class Parser(argparse.ArgumentParser):
    """argparse's, without the usage before what is wrong, and with the flag's name first."""

    def error(self, message: str) -> NoReturn:
        """Say it and end."""
        self.exit(WRONG_USAGE, f"{self.prog}: {message.removeprefix('argument ')}\n")
