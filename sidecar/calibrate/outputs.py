"""The files of a report: opened before anything is measured, written after it.

Rule: acts. What cannot be written is refused by the flag's name while it costs nothing; a file that was made
for a run that did not come to its report is taken away again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from sidecar.remote.texts import quoted

STANDARD_OUTPUT = "-"
# Of standard output: the number, since nothing else is certain to have it.
_STANDARD_OUTPUT_FILE = 1

Identity = tuple[int, int]


class BadOutput(ValueError):
    """A file that cannot be written; the message begins with the flag."""


@dataclass(slots=True)
class Output:
    """An open file. created: by us. written: it has its content."""

    flag: str
    place: str
    file: int
    created: bool
    written: bool = False

    def write(self, content: str) -> None:
        """In place of what was there, as UTF-8. Raises BadOutput."""
        rest = content.encode("utf-8", "backslashreplace")
        try:
            if stat.S_ISREG(os.fstat(self.file).st_mode):
                os.ftruncate(self.file, 0)
            while rest:
                rest = rest[os.write(self.file, rest) :]
        except OSError as error:
            raise BadOutput(_wrong(self.flag, self.place, error)) from None
        self.written = True

    def close(self) -> None:
        """And take it away if it is ours and empty."""
        os.close(self.file)
        if self.created and not self.written:
            with suppress(OSError):  # taken away by somebody else, then
                os.unlink(self.place)


@contextmanager
def opened(files: Mapping[str, str]) -> Iterator[dict[str, Output]]:
    """All of them but standard output, by the names of their flags. Raises BadOutput."""
    outputs: dict[str, Output] = {}
    taken = {_identity(_STANDARD_OUTPUT_FILE): "standard output"}
    with ExitStack() as stack:
        for name, place in files.items():
            if place == STANDARD_OUTPUT:
                continue
            outputs[name] = output = _open(f"--{name}", place)
            stack.callback(output.close)
            identity = _identity(output.file)
            if identity and identity in taken:
                raise BadOutput(f"{output.flag}: {quoted(place)} is where {taken[identity]} goes")
            taken[identity] = output.flag
        yield outputs


def _open(flag: str, place: str) -> Output:
    """Without waiting for the reader of a pipe that has none."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        try:
            return Output(flag, place, os.open(place, flags | os.O_EXCL, 0o666), created=True)
        except FileExistsError:
            file = os.open(place, flags, 0o666)
            os.set_blocking(file, True)
            return Output(flag, place, file, created=False)
    except OSError as error:
        raise BadOutput(_wrong(flag, place, error)) from None


def _identity(file: int) -> Identity | None:
    """The same for every name and link of a file; None for devices, such as /dev/null and terminals."""
    with suppress(OSError):  # standard output may be closed
        told = os.fstat(file)
        if not stat.S_ISCHR(told.st_mode):
            return told.st_dev, told.st_ino
    return None


def _wrong(flag: str, place: str, error: OSError) -> str:
    return f"{flag}: {quoted(place)}: {error.strerror or error}"
