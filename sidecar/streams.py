"""Standard streams that end no command: closed, of a narrow encoding, or with nobody at their other end.

Rule: acts. What cannot be written to standard output is said once and is an exit code; what cannot be written
to standard error is said to nobody, and stops nothing.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

UNWRITTEN = 74
"""The exit code where standard output could not be written (sysexits.h, EX_IOERR): a full disk, mostly."""

# How characters of our own texts are spelled where an encoding has not got them; others are escaped.
_SPELLINGS = {
    "±": "+/-", "²": "^2", "³": "^3", "·": ".", "█": "#", "→": "->", "≠": "!=", "…": "...",
    "│": "|", "├": "|", "└": "`", "─": "-",
}  # fmt: skip
_ERRORS = "sidecar.spelled"


def spelled(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that an encoding has not got (a handler of `codecs.register_error`)."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_spelling, error.object[error.start : error.end])), error.end


def _spelling(character: str) -> str:
    return _SPELLINGS.get(character) or character.encode("ascii", "backslashreplace").decode()


def prepare() -> None:
    """Make the standard streams such as a command may use: all three there, and none that fails."""
    _fill_closed()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started this: nobody reads, which stops nothing
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as the program runs
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # what is typed in another encoding is no answer, not a fault
    codecs.register_error(_ERRORS, spelled)
    sys.stdout = _prepared(sys.stdout, sys.__stdout__, _Output)
    sys.stderr = _prepared(sys.stderr, sys.__stderr__, _Asides)


def _prepared(stream: TextIO, own: TextIO | None, kind: Callable[..., io.FileIO]) -> TextIO:
    """The same, with what it does where it cannot encode, and, where it is the process' own, cannot write."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    if stream is not own:
        stream.reconfigure(errors=_ERRORS)
        return stream
    raw = io.BufferedWriter(kind(stream.fileno(), "w", closefd=False))
    # With PYTHONUNBUFFERED streams say that they write through, which in front of a buffer is not enough.
    lines = stream.line_buffering or stream.write_through
    return io.TextIOWrapper(raw, stream.encoding, _ERRORS, line_buffering=lines)


def _fill_closed() -> None:
    """Take the numbers of closed standard streams, which the next file or socket would have otherwise."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)


class _Asides(io.FileIO):
    """Standard error: takes everything; what its disk or reader does not take is lost."""

    def write(self, content: Buffer) -> int:
        """How much was taken: all of it, where it is lost."""
        written = None  # as of a pipe that is full and does not wait
        with contextlib.suppress(OSError):  # nobody can be told: this is where it would be said
            written = super().write(content)
        return len(memoryview(content)) if written is None else written


class _Output(io.FileIO):
    """Standard output. gone: its reader has seen enough (`| head`), which is no failure."""

    gone = False

    def write(self, content: Buffer) -> int | None:  # type: ignore[override]
        """Raises SystemExit, with UNWRITTEN, after saying why it cannot be written."""
        try:
            return super().write(content)
        except BrokenPipeError:
            self.gone = True
            self._give_up()
            return len(memoryview(content))
        except OSError as error:
            self._give_up()
            print(f"sidecar: standard output: {error.strerror or error}", file=sys.stderr)
            raise SystemExit(UNWRITTEN) from None

    def _give_up(self) -> None:
        """So that what is still buffered goes quietly nowhere."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())
        os.close(null)


def show(text: str, *, end: str = "\n") -> bool:
    """Print to standard output at once; False where its reader has seen enough, and more is in vain.

    Raises SystemExit, with the code UNWRITTEN, after saying why it cannot be written.
    """
    print(text, end=end, flush=True)
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return not (isinstance(raw, _Output) and raw.gone)
