"""Standard output and standard error, whatever they are."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from typing import TextIO

import pytest

from sidecar import streams


def test_what_an_encoding_has_not_got_is_spelled_or_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    ascii_output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(ascii_output, "ascii"))
    streams.prepare()
    assert streams.show("148 ms ± 0.97, [█·] k², é \ud800 → … 東")
    assert ascii_output.getvalue() == rb"148 ms +/- 0.97, [#.] k^2, \xe9 \ud800 -> ... \u6771" + b"\n"


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_a_stream_that_was_closed_is_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, name, None)
    streams.prepare()
    stream: TextIO = getattr(sys, name)
    with stream:
        assert (stream.name, stream.isatty()) == (os.devnull, False)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, TextIO], TextIO]:
    """Makes a file the process' own standard stream of that name, and gives what it becomes."""

    def give(name: str, stream: TextIO) -> TextIO:
        monkeypatch.setattr(sys, name, stream)
        monkeypatch.setattr(sys, f"__{name}__", stream)
        streams.prepare()
        became: TextIO = getattr(sys, name)
        return became

    return give


Given = Callable[[str, TextIO], TextIO]


def test_a_reader_that_has_seen_enough_is_no_failure(
    given: Given, capsys: pytest.CaptureFixture[str]
) -> None:
    inner, outer = os.pipe()
    with open(outer, "w") as stream, given("stdout", stream):
        assert streams.show("read")
        os.close(inner)
        assert not streams.show("x" * 100_000)
        assert not streams.show("into nothing")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("unbuffered", [False, True])
def test_a_full_disk_is_said_and_is_the_exit_code(
    unbuffered: bool, given: Given, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as full:
        assert isinstance(full, io.TextIOWrapper)
        full.reconfigure(write_through=unbuffered)
        with given("stdout", full), pytest.raises(SystemExit) as ended:
            streams.show("text")
    assert ended.value.code == 74
    assert capsys.readouterr().err == "sidecar: standard output: No space left on device\n"


def test_what_standard_error_does_not_take_stops_nothing(given: Given) -> None:
    with open("/dev/full", "w") as full, given("stderr", full) as became:
        print("nobody hears it", file=became, flush=True)
        assert (became.fileno(), became.errors) == (full.fileno(), "sidecar.spelled")


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_where_streams_have_no_buffer_a_line_leaves_at_once(name: str) -> None:
    script = (
        "import os, sys; from sidecar import streams; streams.prepare()\n"
        f"print('first', file=sys.{name}); os.write(sys.{name}.fileno(), b'second\\n')"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert getattr(run, name) == b"first\nsecond\n"
