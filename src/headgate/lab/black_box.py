"""Records any limiter with an HTTP API: when each request was sent and answered, and whether it passed.

Nothing is known about the limiter behind the address, so such a history has no receipts; the interval checks need none.
Requests are bounded in number and time, and go to this machine only: never load somebody else's server.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ..errors import UsageError
from .recorder import HistoryRecorder, monotonic_us
from .verdict import unanswered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..algorithms import Limit

MAX_REQUESTS: Final = 1_000_000
MAX_CLIENTS: Final = 256
MAX_SECONDS: Final = 600.0
MAX_ANSWER: Final = 1_048_576
BODY: Final = '{"key": "{key}", "cost": {cost}}'
PLACEHOLDER: Final = re.compile(r"\{(key|cost|n)\}")


@dataclass(frozen=True)
class Target:
    """Where to send requests, how, and how to read the answer."""

    url: str
    method: str = "POST"
    body: str = BODY
    """`{key}`, `{cost}` and `{n}` (a counter) are filled in, also in the address and in headers."""
    headers: Mapping[str, str] = field(default_factory=dict)
    allow_status: frozenset[int] = frozenset(range(200, 300))
    deny_status: frozenset[int] = frozenset((429,))
    allow_field: str = ""
    """A field of the JSON answer that is true if allowed, such as `allowed` or `result.ok`; if empty, the status
    decides."""
    timeout_s: float = 5.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme != "http" or not parts.hostname:
            raise UsageError(
                f"{self.url!r:.80} cannot be recorded; use an address such as http://127.0.0.1:8080/check"
            )
        if not is_this_machine(parts.hostname):
            raise UsageError(
                f"{parts.hostname!r:.80} is not this machine; record only a limiter on 127.0.0.1, ::1 or localhost"
            )


@dataclass(frozen=True)
class Load:
    """How many requests to send."""

    requests: int = 1_000
    seconds: float = 10.0
    clients: int = 8
    keys: int = 1
    cost: int = 1
    pause_s: float = 0.0
    """The pause of a client between two requests."""
    name: str = "key"
    """What its keys are called; a number follows if there are several."""

    def __post_init__(self) -> None:
        bounds = (
            ("requests", self.requests, MAX_REQUESTS),
            ("seconds", self.seconds, MAX_SECONDS),
            ("clients", self.clients, MAX_CLIENTS),
            ("keys", self.keys, MAX_REQUESTS),
        )
        for name, value, most in bounds:
            if not 0 < value <= most:
                raise UsageError(f"{name} must be from 1 to {most:g}, not {value:g}")
        if not 0 <= self.pause_s <= MAX_SECONDS:
            raise UsageError(f"a pause must be from 0 to {MAX_SECONDS:g} s, not {self.pause_s:g}")
        if self.cost < 0:
            raise UsageError(f"a cost must be 0 or more, not {self.cost}")


def is_this_machine(host: str) -> bool:
    """Whether a request to this host cannot leave the machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def record(path: str, target: Target, load: Load, limit: Limit, **header: Any) -> str:
    """Send requests until one of the bounds is reached, and write the history.

    Returns why nothing in it can be judged, if no call was answered; else nothing.
    """
    with HistoryRecorder(path, limits={"": limit}, **header) as recorder:
        run = _Run(recorder, target, load)
        clients = [
            threading.Thread(target=run.client, args=(number,)) for number in range(load.clients)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    return unanswered(run.types, run.first_error)


class _Run:
    """The common part of all clients of one recording."""

    def __init__(self, recorder: HistoryRecorder, target: Target, load: Load) -> None:
        self._recorder, self._target, self._load = recorder, target, load
        self._ends = monotonic_us() + round(load.seconds * 1e6)
        self._lock = threading.Lock()
        self._sent = 0
        self._over = threading.Event()
        self.types: Counter[str] = Counter()
        self.first_error: str | None = None

    def client(self, number: int) -> None:
        """One client, on its own connection. If an answer never comes, it starts over under another name."""
        parts = urlsplit(self._target.url)
        connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port, timeout=self._target.timeout_s
        )
        lives = 0
        try:
            while (n := self._next()) is not None:
                if self._ask(connection, n, f"{number}.{lives}") == "info":
                    lives += 1
                if self._load.pause_s:
                    self._over.wait(self._load.pause_s)
        finally:
            connection.close()

    def _next(self) -> int | None:
        with self._lock:
            if self._sent >= self._load.requests or monotonic_us() >= self._ends:
                return None
            self._sent += 1
            return self._sent

    def _ask(self, connection: http.client.HTTPConnection, n: int, proc: str) -> str:
        target, load = self._target, self._load
        key = f"{load.name}-{n % load.keys}" if load.keys > 1 else load.name
        values = {"key": key, "cost": str(load.cost), "n": str(n)}
        parts = urlsplit(target.url)
        path = filled(f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}", values)
        body = (
            filled(target.body, values).encode() if target.method not in ("GET", "HEAD") else None
        )
        headers = {name: filled(value, values) for name, value in target.headers.items()}
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        error = None
        t0 = monotonic_us()
        try:
            if connection.sock is None:
                try:
                    connection.connect()
                except OSError as refused:  # Nothing was sent.
                    self._note(key, t0, proc, "fail", str(refused))
                    self._over.wait(0.01)
                    return "fail"
            connection.request(target.method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read(MAX_ANSWER)
            outcome, error = outcome_of(target, answer.status, content)
        except (OSError, http.client.HTTPException) as lost:
            connection.close()
            outcome, error = "info", str(lost) or type(lost).__name__
        self._note(key, t0, proc, outcome, error)
        return outcome

    def _note(self, key: str, t0: int, proc: str, outcome: str, error: str | None) -> None:
        with self._lock:
            self.types[outcome] += 1
            self.first_error = self.first_error or error
        self._recorder.operation(
            f="check", key=key, rule="", cost=self._load.cost, proc=proc, t0=t0, t1=monotonic_us(),
            type=outcome, err=None if error is None else error[:200],
        )  # fmt: skip


def filled(template: str, values: Mapping[str, str]) -> str:
    """Fill in the placeholders of a template; other braces are left alone.

    >>> filled('{"id": "{key}"}', {"key": "ann"})
    '{"id": "ann"}'
    """
    return PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)


def outcome_of(target: Target, status: int, content: bytes) -> tuple[str, str | None]:
    """The outcome of a request, from the status and content of its answer, and the reason if that is unclear."""
    if target.allow_field and status in target.allow_status:
        try:
            value = json.loads(content)
            for part in target.allow_field.split("."):
                value = value[part]
        except (ValueError, KeyError, TypeError):
            return "info", f"the answer has no {target.allow_field!r:.60}"
        return ("allow" if value is True else "deny"), None
    if status in target.deny_status:
        return "deny", None
    if status in target.allow_status:
        return "allow", None
    if 400 <= status < 500:
        return "fail", f"status {status}"
    return "info", f"status {status}"
