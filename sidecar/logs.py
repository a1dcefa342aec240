"""Sets up logging: one JSON object, or one readable line, per record on standard error.

Rule: an `extra={"fields": {...}}` of a record becomes fields of its line; nothing else of a request is there.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec

# Third parties that speak at info about what our own lines say already.
_QUIET = ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio", "httpx", "httpcore", "opentelemetry")


_ENCODER = msgspec.json.Encoder()


class JsonLines(logging.Formatter):
    """One JSON object per record: time, level, logger, message, then the record's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter.format."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return _ENCODER.encode(fields).decode()


class TextLines(logging.Formatter):
    """The same for people: time, level, message, then `key=value` of the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter.format."""
        time = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        fields = getattr(record, "fields", {})
        pairs = [f"{key}={_ENCODER.encode(value).decode()}" for key, value in fields.items()]
        text = " ".join([time, record.levelname, record.getMessage(), *pairs])
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def configure(level: str, form: str) -> None:
    """Log to standard error at `level` (debug, info, warning, error) as `form` (json, text)."""
    # Nobody reads these of our lines, and they cost as much as the line itself.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [output]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
