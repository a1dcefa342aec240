"""What a person sees meanwhile."""

from __future__ import annotations

import fcntl
import io
import pty
import struct
import termios

import pytest

from sidecar.calibrate.plan import Kind, Leg
from sidecar.calibrate.progress import Progress, columns
from sidecar.calibrate.verdicts import Measured, Rise, Verdict

LEGS = [Leg(n, 0, Kind.PULL, 2048) for n in range(40)]


def over(leg: Leg) -> Measured:
    return Measured(leg, Verdict.MOVED, "", 2048, 42.13, 1.0, Rise())


def test_on_a_terminal_one_line_is_written_over_and_cleared() -> None:
    stream = io.StringIO()
    progress = Progress(LEGS, stream, 120)
    progress(over(Leg(-2, -1, Kind.PULL, 2048)))
    for leg in LEGS[:20]:
        progress(over(leg))
    progress.end()
    assert "\n" not in stream.getvalue()
    shown = stream.getvalue().split("\r\x1b[K")
    assert shown[1] == "warm pull: moved, 42.1 ms"
    assert shown[21].startswith(
        "[████████████············]  50%  20/40 legs, under 1 s left  2,048 tokens pull"
    )
    assert shown[-1] == ""


def test_elsewhere_there_is_a_line_for_each_tenth_of_the_work() -> None:
    stream = io.StringIO()
    progress = Progress(LEGS, stream, 0)
    for leg in LEGS:
        progress(over(leg))
    progress.end()
    lines = stream.getvalue().splitlines()
    assert 8 <= len(lines) <= 11
    assert lines[-1] == "sidecar calibrate: 40/40 legs  2,048 tokens pull: moved, 42.1 ms"
    assert "\r" not in stream.getvalue()


def test_a_line_is_not_wider_than_the_terminal_since_a_wrapped_one_could_not_be_written_over() -> None:
    stream = io.StringIO()
    progress = Progress(LEGS, stream, 40)
    progress(over(LEGS[0]))
    assert stream.getvalue() == f"\r\x1b[K[█{'·' * 23}]   2%  1/40 l"


def test_the_columns_are_those_of_a_terminal_that_can_clear_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 132, 0, 0))
    monkeypatch.setenv("TERM", "xterm")
    with open(outer, "w"), open(inner, "w") as stream:
        assert columns(stream) == 132
        monkeypatch.setenv("TERM", "dumb")
        assert columns(stream) == 0
    assert columns(io.StringIO()) == 0
