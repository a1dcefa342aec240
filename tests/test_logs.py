"""Log lines as they are written, byte for byte."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable

import pytest

from sidecar.logs import KEPT_BYTES, KEPT_S, Lines, Told, json_line, text_line, told


def record(level: int = logging.INFO, message: str = "said %s", **extra: object) -> logging.LogRecord:
    """A record of a known moment, in this process's own milliseconds."""
    made = logging.LogRecord("sidecar.x", level, "", 0, message, ("it",), None)
    made.created, made.msecs = 1_796_013_951.007, 7.0
    made.__dict__.update(extra)
    return made


def test_a_json_line_is_one_object_with_the_fields_behind_the_message() -> None:
    line = json_line(told(record(fields={"status": 200, "reason": None, "legs": [{"a": 1.5}]})))
    assert line == (
        b'{"time":"2026-11-30T04:45:51.007+00:00","level":"info","logger":"sidecar.x","message":"said it",'
        b'"status":200,"reason":null,"legs":[{"a":1.5}]}'
    )


def test_a_text_line_is_for_people() -> None:
    line = text_line(told(record(logging.WARNING, fields={"status": 200, "path": "/a b"})))
    assert line == b'04:45:51.007 WARNING said it status=200 path="/a b"'


@pytest.mark.parametrize("write", [json_line, text_line])
def test_an_exception_is_told_with_its_trace(write: object) -> None:
    try:
        raise ValueError("out of order")
    except ValueError:
        failed = record(logging.ERROR, exc_info=sys.exc_info())
    assert callable(write)
    text = write(told(failed)).decode()
    if write is json_line:
        text = json.loads(text)["exception"]
    assert "Traceback" in text
    assert text.endswith("ValueError: out of order")


def test_what_a_client_sends_cannot_begin_a_line_of_its_own() -> None:
    hostile = 'x\n{"level":"info"}\r\n\u2028\ud800'
    line = text_line(told(record(fields={"path": hostile.replace("\ud800", "")})))
    assert b"\n" not in line
    assert b"\r" not in line


@pytest.mark.parametrize("write", [json_line, text_line])
def test_bytes_of_others_that_are_not_utf_8_are_spelled_out(write: Callable[[Told], bytes]) -> None:
    line = write(Told(1_796_013_951.007, "INFO", "sidecar.x", "f\u00fcr \udcff", {}, "ValueError: \ud800"))
    text = line.decode()
    if write is json_line:
        told_again = json.loads(text)
        text = f"{told_again['message']}\n{told_again['exception']}"
    assert text.endswith("f\u00fcr \\udcff\nValueError: \\ud800")


def test_a_line_that_cannot_be_written_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    closed = io.BytesIO()
    closed.close()
    Lines(closed, json_line).emit(record())
    assert "I/O operation on closed file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("level", "seen"), [("debug", "DIWE"), ("info", "IWE"), ("warning", "WE"), ("error", "E")]
)
def test_the_level_holds_and_third_parties_only_warn(level: str, seen: str) -> None:
    script = (
        f"import logging; from sidecar import logs; logs.configure({level!r}, 'text'); "
        "mine, other = logging.getLogger('sidecar.x'), logging.getLogger('uvicorn.error'); "
        "mine.debug('D'); mine.info('I'); mine.warning('W'); mine.error('E'); other.info('never')"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "".join(line.split()[2] for line in run.stderr.splitlines()) == seen
    assert run.stdout == ""


@pytest.mark.parametrize(("level", "seen"), [("debug", True), ("info", False), ("warning", False)])
def test_clients_name_the_urls_of_their_requests_at_debug_only(level: str, seen: bool) -> None:
    script = (
        f"import httpx, httpx2; from sidecar import logs; logs.configure({level!r}, 'text')\n"
        "for made in (httpx, httpx2):\n"
        "    transport = made.MockTransport(lambda request: made.Response(200))\n"
        "    made.Client(transport=transport).get('http://engine/metrics')"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stderr.count("http://engine/metrics") == (2 if seen else 0)


def plain(message: str, **fields: object) -> Told:
    return Told(1_796_013_951.007, "INFO", "sidecar.x", message, fields)


def test_a_line_without_a_record_looks_like_one_with() -> None:
    made = record(fields={"status": 200, "path": "/a b"})
    assert json_line(plain("said it", status=200, path="/a b")) == json_line(told(made))
    assert text_line(plain("said it", status=200, path="/a b")) == text_line(told(made))


async def test_lines_without_a_record_are_written_together_a_little_later() -> None:
    output = io.BytesIO()
    lines = Lines(output, text_line)
    lines.tell(plain("one"))
    lines.tell(plain("two"))
    assert output.getvalue() == b""
    await asyncio.sleep(KEPT_S * 2)
    assert output.getvalue() == b"04:45:51.007 INFO one\n04:45:51.007 INFO two\n"
    lines.tell(plain("three"))
    await asyncio.sleep(KEPT_S * 2)
    assert output.getvalue().endswith(b" two\n04:45:51.007 INFO three\n")


async def test_a_record_takes_the_lines_before_it_along_at_once() -> None:
    output = io.BytesIO()
    lines = Lines(output, text_line)
    lines.tell(plain("one"))
    lines.emit(record(logging.WARNING))
    assert output.getvalue() == b"04:45:51.007 INFO one\n04:45:51.007 WARNING said it\n"


async def test_no_more_lines_are_kept_than_one_write_takes() -> None:
    output = io.BytesIO()
    lines = Lines(output, text_line)
    lines.tell(plain("x" * KEPT_BYTES))
    assert output.getvalue() == b"04:45:51.007 INFO " + b"x" * KEPT_BYTES + b"\n"


async def test_kept_lines_that_cannot_be_written_stop_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    output = io.BytesIO()
    lines = Lines(output, text_line)
    lines.tell(plain("one"))
    output.close()
    lines.flush()
    assert "I/O operation on closed file" in capsys.readouterr().err


@pytest.mark.parametrize(("level", "seen"), [("info", ["one", "two"]), ("warning", [])])
def test_lines_that_are_kept_at_the_end_are_written_and_the_level_holds(level: str, seen: list[str]) -> None:
    script = (
        "import asyncio, logging; from sidecar import logs; "
        "from sidecar.observers import ExchangeRecord; from sidecar.observers.log import ExchangeLog\n"
        f"logs.configure({level!r}, 'json')\n"
        "async def main():\n"
        "    for name in ('one', 'two'):\n"
        "        record = ExchangeRecord(method=name, path='/', request_headers=(), api=None, started_s=0)\n"
        "        with ExchangeLog().exchange(record): pass\n"
        "asyncio.run(main())"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert [json.loads(line)["method"] for line in run.stderr.splitlines()] == seen
