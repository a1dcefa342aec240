"""Sets up logging: one JSON object, or one readable line, per record on standard error.

Rule: an `extra={"fields": {...}}` of a record becomes fields of its line; nothing else of a request is there.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from io import UnsupportedOperation
from typing import Any, BinaryIO, NamedTuple

import msgspec

from sidecar.background import Background

# Third parties that speak at info about what our own lines say already.
_QUIET = ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio", "opentelemetry")
# Clients of HTTP, which name the URL of each request at info: of engines, of the Kubernetes API. Whoever asks
# for debug may want to see them.
_CLIENTS = ("httpx", "httpcore", "httpx2", "httpcore2", "lightkube", "kubernetes", "urllib3")

_ENCODER = msgspec.json.Encoder()
_TRACES = logging.Formatter()


# Seconds that an exchange's line may wait for others: a busy sidecar writes hundreds at once, and nobody who
# reads a log sees the difference.
KEPT_S = 0.1
# Bytes of lines kept at most: one write's worth to a pipe (pipe(7): 64 KiB).
KEPT_BYTES = 65536
# Seconds that a reader who stands still gets at the end of the program.
END_S = 1.0


class Told(NamedTuple):
    """What a line is made of. created: seconds since 1970. fields: what stands behind the message.

    trace: of an exception, "" for none.
    """

    created: float
    level: str
    name: str
    message: str
    fields: Mapping[str, Any]
    trace: str = ""


def told(record: logging.LogRecord) -> Told:
    """What this record tells."""
    trace = _TRACES.formatException(record.exc_info) if record.exc_info else ""
    fields = getattr(record, "fields", {})
    return Told(record.created, record.levelname, record.name, record.getMessage(), fields, trace)


class Lines(logging.Handler):
    """Writes each record as one line of bytes. write: `json_line` or `text_line`.

    What is told without a record is kept up to KEPT_S, in which a busy sidecar has many lines to write; a
    record takes it along at once, and so does the end of the program (logging.shutdown).
    """

    def __init__(self, output: BinaryIO | Background, write: Callable[[Told], bytes]) -> None:
        super().__init__()
        self._output = output
        self._write = write
        self._kept: list[bytes] = []
        self._kept_bytes = 0

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler.emit: a line that cannot be written never stops what it is about."""
        try:
            self._kept += (self._write(told(record)), b"\n")
            self._write_kept()
        except Exception:
            self.handleError(record)

    def say(self, line: str) -> None:
        """Write a line that is no record, as it is. Raises OSError."""
        with self.lock or nullcontext():
            self._output.write(line.encode(errors="backslashreplace") + b"\n")
            self._output.flush()

    def tell(self, line: Told) -> None:
        """Write this line within KEPT_S. To be called in a running event loop."""
        text = self._write(line)
        self.acquire()
        first = not self._kept
        self._kept += (text, b"\n")
        self._kept_bytes += len(text)
        self.release()
        if self._kept_bytes > KEPT_BYTES:
            self.flush()
        elif first:
            asyncio.get_running_loop().call_later(KEPT_S, self.flush)

    def flush(self) -> None:
        """Write what is kept."""
        self.acquire()
        try:
            self._write_kept()
        except Exception:
            self.handleError(logging.makeLogRecord({"msg": "lines that could not be written"}))
        finally:
            self.release()

    def close(self) -> None:
        """Write what is kept, as far as its reader takes it within END_S."""
        self.flush()
        if isinstance(self._output, Background):
            self._output.drain(END_S)
        super().close()

    def _write_kept(self) -> None:
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        if kept:
            self._output.write(b"".join(kept))
            self._output.flush()


def say(line: str) -> None:
    """Write a line that is no record, as it is, where the log goes. Raises OSError."""
    for handler in logging.root.handlers:
        if isinstance(handler, Lines):
            handler.say(line)


def tell(logger: logging.Logger, message: str, fields: Mapping[str, Any]) -> None:
    """Log at level info, which the caller knows to be enabled, what is said once per request.

    As `logger.info(message, extra={"fields": fields})`, past logging's machinery where nothing but our own
    lines would come of it.
    """
    handlers = logging.root.handlers
    if len(handlers) == 1 and isinstance(lines := handlers[0], Lines) and not logger.handlers:
        now_s = time.time()  # noqa: TID251 - the time of day is what a line tells
        lines.tell(Told(now_s, "INFO", logger.name, message, fields))
    else:
        logger.info(message, extra={"fields": fields})


def json_line(line: Told) -> bytes:
    """One JSON object: time, level, logger, message, then the fields."""
    text = b'{"time":"%b.%03d+00:00","level":"%b","logger":"%b","message":%b' % (
        _second(int(line.created)),
        int(line.created * 1000) % 1000,
        line.level.lower().encode(),
        line.name.encode(),
        _quoted(line.message),
    )
    if line.fields:
        text += b"," + _ENCODER.encode(line.fields)[1:-1]
    if line.trace:
        text += b',"exception":' + _quoted(line.trace)
    return text + b"}"


def _quoted(text: str) -> bytes:
    """The text in JSON, with lone surrogates (bytes of others that are not UTF-8, PEP 383) spelled out."""
    try:
        return _ENCODER.encode(text)
    except UnicodeEncodeError:
        return _ENCODER.encode(text.encode(errors="backslashreplace").decode())


def text_line(line: Told) -> bytes:
    """The same for people: time of day, level, message, then `key=value` of the fields."""
    time_of_day = f"{_second(int(line.created))[11:].decode()}.{int(line.created * 1000) % 1000:03d}"
    pairs = [f"{key}={_ENCODER.encode(value).decode()}" for key, value in line.fields.items()]
    text = " ".join([time_of_day, line.level, line.message, *pairs])
    if line.trace:
        text += "\n" + line.trace
    return text.encode(errors="backslashreplace")


@functools.lru_cache(2)
def _second(created_s: int) -> bytes:
    """A second of UTC, which many lines share."""
    return datetime.fromtimestamp(created_s, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()


def configure(level: str, form: str) -> None:
    """Log to standard error at `level` (debug, info, warning, error) as `form` (json, text)."""
    # Nobody reads these of our lines, and they cost as much as the line (logging HOWTO, "Optimization").
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    root = logging.getLogger()
    write = json_line if form == "json" else text_line
    root.handlers[:] = [Lines(_standard_error(write), write)]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    for name in _CLIENTS:
        quiet = root.level if level == "debug" else max(logging.WARNING, root.level)
        logging.getLogger(name).setLevel(quiet)


def _standard_error(write: Callable[[Told], bytes]) -> BinaryIO | Background:
    """Whose reader holds nobody up. Without a descriptor it is something in memory."""
    try:
        return Background(sys.stderr.fileno(), partial(_lost, write))
    except UnsupportedOperation:
        return sys.stderr.buffer


def _lost(write: Callable[[Told], bytes], lines: int) -> bytes:
    now_s = time.time()  # noqa: TID251 - the time of day is what a line tells
    said = f"{lines} lines are lost here: standard error was not read"
    return write(Told(now_s, "WARNING", "sidecar.logs", said, {})) + b"\n"
