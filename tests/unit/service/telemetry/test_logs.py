"""Logs: one line each, nothing from outside can forge or flood them."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from headgate.service.telemetry.logs import JsonFormatter, RateLimitedFilter

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def log(stream: io.StringIO) -> Iterator[logging.Logger]:
    logger = logging.getLogger("headgate.test-of-logs")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(RateLimitedFilter(burst=2, period=0.2))
    logger.addHandler(handler)
    logger.propagate = False
    yield logger
    logger.removeHandler(handler)


def written(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_time_level_logger_message_and_what_else_was_given(
    log: logging.Logger, stream: io.StringIO
) -> None:
    log.warning("hello %s", "you", extra={"count": 3, "who": "ann"})
    (line,) = written(stream)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "headgate.test-of-logs",
        "message": "hello you",
        "count": 3,
        "who": "ann",
    }


def test_input_cannot_forge_a_line_or_control_a_terminal(
    log: logging.Logger, stream: io.StringIO
) -> None:
    log.error("key %s", 'a\r\n{"level": "info"}\x1b[31m\u2028\u202e', extra={"path": "/\n\x1b"})
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.isascii()
    assert "\x1b" not in text


def test_long_values_are_cut(log: logging.Logger, stream: io.StringIO) -> None:
    log.error("x" * 1_000_000, extra={"key": "y" * 1_000_000})
    (line,) = written(stream)
    assert (len(line["message"]), len(line["key"])) == (256, 256)


def test_a_message_that_repeats_is_counted_instead(
    log: logging.Logger, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("headgate.service.telemetry.logs.time.monotonic", lambda: now[0])
    for at in range(7):
        log.error("failed for %s", at)
    log.error("something else")
    assert [line["message"] for line in written(stream)] == [
        "failed for 0",
        "failed for 1",
        "something else",
    ]
    now[0] = 0.2
    log.error("failed for %s", 7)
    assert written(stream)[-1]["left_out"] == 5


def test_a_traceback_is_a_field(log: logging.Logger, stream: io.StringIO) -> None:
    try:
        _fail()
    except ValueError:
        log.exception("it broke")
    assert "ValueError: why" in written(stream)[0]["traceback"]


def _fail() -> None:
    raise ValueError("why")
