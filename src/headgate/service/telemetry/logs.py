"""Logs as JSON, one object per line, safe against forged lines and floods.

Control characters and everything beyond ASCII are escaped, so a record is always one line and cannot control a
terminal. Values are cut at 256 characters. The same message is logged at most five times in ten seconds; the next one
reports how many were left out.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import IO, Any, Final

MAX_VALUE: Final = 256
MAX_TRACE: Final = 8_192
BURST: Final = 5
PERIOD: Final = 10.0
MAX_KNOWN: Final = 1_000
_STANDARD: Final = frozenset(
    vars(logging.LogRecord("", 0, "", 0, "", None, None))
    | {"message": 0, "asctime": 0, "color_message": 0}
)


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage()),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD:
                line[name] = _plain(value)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)[-MAX_TRACE:]
        return json.dumps(line, default=str)


class RateLimitedFilter(logging.Filter):
    """Lets the same message pass a few times, then only counts it."""

    def __init__(self, burst: int = BURST, period: float = PERIOD) -> None:
        super().__init__()
        self._burst = burst
        self._period = period
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write this record."""
        now = time.monotonic()
        what = (record.name, str(record.msg))
        since, count = self._seen.get(what, (now, 0))
        left_out = 0
        if now - since >= self._period:
            left_out = max(0, count - self._burst)
            since, count = now, 0
        if what not in self._seen and len(self._seen) >= MAX_KNOWN:
            self._seen.clear()
        self._seen[what] = (since, count + 1)
        if left_out:
            record.left_out = left_out
        return count < self._burst


def configure_logs(level: str, stream: IO[str] | None = None) -> None:
    """Send all logs of this process to `stream`, or to stderr, as JSON."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(RateLimitedFilter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn.error").setLevel(
        logging.WARNING if level != "debug" else logging.DEBUG
    )
    logging.getLogger("uvicorn.access").disabled = True


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    return _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 1] + "…"
