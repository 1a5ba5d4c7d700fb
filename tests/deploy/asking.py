"""Asking whatever listens: one request on a connection of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
from typing import Any


def ask(
    host: str, port: int, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    """Status and body of one answer."""
    connection = http.client.HTTPConnection(host, port, timeout=10)
    with contextlib.closing(connection):
        sent = None if body is None else json.dumps(body)
        given = {"Content-Type": "application/json", **(headers or {})}
        connection.request("GET" if body is None else "POST", path, sent, given)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def answers(host: str, port: int, path: str) -> bool:
    """Whether it says 200 there."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return ask(host, port, path)[0] == 200
    return False
