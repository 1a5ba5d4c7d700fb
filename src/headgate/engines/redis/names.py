"""Names: the addresses of a host, looked up in the background, with the last known ones as a fallback.

A slow or missing name server must not take down a working store. So a lookup that fails, or takes longer than
`PATIENCE_S`, is answered from memory. Every new connection looks the name up again, so that a store that has moved is
found.

Only one lookup of a host runs at a time, in its own thread, and all callers get its answer. While a name server is
silent, connections are attempted many times a second; a thread for each would exhaust the process and the event loop's
thread pool.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from _thread import start_new_thread
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

from ..._fork import reset_after_fork

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S: Final = 0.1
"""How long a lookup may take if an older result is known."""

Found: TypeAlias = "list[str] | OSError"

_last: dict[str, list[str]] = {}
"""The last result by host. Hosts come from URLs and from the servers themselves, so there are few."""


def addresses_of(host: str, seconds: float) -> list[str]:
    """The addresses of a host; raises `OSError` if there are none, or none in time."""
    if is_address(host):
        return [host]
    told: SimpleQueue[Found] = SimpleQueue()
    _lookups.begin(host, told.put)
    try:
        found: Found = told.get(timeout=_patience(host, seconds))
    except Empty:
        found = TimeoutError(f"{host} could not be resolved in time")
    return _or_last(host, found)


async def addresses_of_async(host: str) -> list[str]:
    """The same, async, without a time limit."""
    if is_address(host):
        return [host]
    loop = asyncio.get_running_loop()
    looking: asyncio.Future[Found] = loop.create_future()

    def resolve(found: Found) -> None:
        if not looking.done():
            looking.set_result(found)

    def on_result(found: Found) -> None:
        with suppress(RuntimeError):  # The loop has ended.
            loop.call_soon_threadsafe(resolve, found)

    _lookups.begin(host, on_result)
    found: Found
    try:
        found = await asyncio.wait_for(looking, _patience(host, None))
    except TimeoutError as error:
        found = error
    return _or_last(host, found)


class Lookups:
    """The lookups that are running, and their callbacks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.under_way: dict[str, list[Callable[[Found], None]]] = {}
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Called in a child process, which does not have the parent's threads."""
        self._lock = threading.Lock()
        self.under_way = {}

    def begin(self, host: str, on_result: Callable[[Found], None]) -> None:
        """Call `on_result` with the result, from another thread."""
        with self._lock:
            if host in self.under_way:
                self.under_way[host].append(on_result)
                return
            start_new_thread(self._look_up, (host,))
            self.under_way[host] = [on_result]

    def _look_up(self, host: str) -> None:
        found = _looked_up(host)
        with self._lock:
            waiting = self.under_way.pop(host, [])
        for on_result in waiting:
            on_result(found)


_lookups: Final = Lookups()


def is_address(host: str) -> bool:
    """Whether it is an address already, with nothing to look up."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _patience(host: str, seconds: float | None) -> float | None:
    if host not in _last:
        return seconds
    return PATIENCE_S if seconds is None else min(PATIENCE_S, seconds)


def _looked_up(host: str) -> Found:
    """The system's answer; remembered for the next caller, even if nobody waits any more."""
    try:
        rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return error if isinstance(error, OSError) else OSError(str(error))
    found = list(dict.fromkeys([str(row[4][0]) for row in rows]))
    _last[host] = found
    return found


def _or_last(host: str, found: Found) -> list[str]:
    if isinstance(found, list):
        return found
    if host not in _last:
        raise found
    return _last[host]
