"""Sets up logging: one JSON object, or one readable line, per record on standard error.

Rule: an `extra={"fields": {...}}` of a record becomes fields of its line; nothing else of a request is there.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, BinaryIO

import msgspec

# Third parties that speak at info about what our own lines say already.
_QUIET = ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio", "httpx", "httpcore", "opentelemetry")

_ENCODER = msgspec.json.Encoder()
_TRACES = logging.Formatter()


class Lines(logging.Handler):
    """Writes each record as one line of bytes. write: `json_line` or `text_line`."""

    def __init__(self, output: BinaryIO, write: Callable[[logging.LogRecord], bytes]) -> None:
        super().__init__()
        self._output = output
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler.emit: a line that cannot be written never stops what it is about."""
        try:
            self._output.write(self._write(record) + b"\n")
            self._output.flush()
        except Exception:
            self.handleError(record)


def json_line(record: logging.LogRecord) -> bytes:
    """One JSON object: time, level, logger, message, then the record's fields."""
    fields: dict[str, Any] = {
        "time": f"{_second(int(record.created))}.{record.msecs:03.0f}+00:00",
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
        **getattr(record, "fields", {}),
    }
    if record.exc_info:
        fields["exception"] = _TRACES.formatException(record.exc_info)
    return _ENCODER.encode(fields)


def text_line(record: logging.LogRecord) -> bytes:
    """The same for people: time of day, level, message, then `key=value` of the fields."""
    time = f"{_second(int(record.created))[11:]}.{record.msecs:03.0f}"
    fields = getattr(record, "fields", {})
    pairs = [f"{key}={_ENCODER.encode(value).decode()}" for key, value in fields.items()]
    text = " ".join([time, record.levelname, record.getMessage(), *pairs])
    if record.exc_info:
        text += "\n" + _TRACES.formatException(record.exc_info)
    return text.encode(errors="backslashreplace")


@functools.lru_cache(2)
def _second(created_s: int) -> str:
    """A second of UTC, which many lines share."""
    return datetime.fromtimestamp(created_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def configure(level: str, form: str) -> None:
    """Log to standard error at `level` (debug, info, warning, error) as `form` (json, text)."""
    # Nobody reads these of our lines, and they cost as much as the line (logging HOWTO, "Optimization").
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    root = logging.getLogger()
    root.handlers[:] = [Lines(sys.stderr.buffer, json_line if form == "json" else text_line)]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
