"""Hosts are looked up for every connection, and known addresses are used while the name server is slow or gone."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from headgate import AsyncLimiter, Limiter
from headgate.engines.redis import names
from tests.servers.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST = "store.test"
UNKNOWN = "another.test"
ADDRESSES = ["127.0.0.1", "::1"]
HOSTS = [HOST, UNKNOWN, *ADDRESSES]
SOON_S = 5.0


class NameServer:
    """A name server that only `names` asks: threads of other tests may still be looking up their own hosts."""

    SOCK_STREAM = socket.SOCK_STREAM

    def __init__(self) -> None:
        self.address = "192.0.2.1"
        self.fails = False
        self.answers = threading.Event()
        self.answers.set()
        self.asked = 0

    def getaddrinfo(self, host: str, *_: Any, **__: Any) -> list[Any]:
        if host not in HOSTS:
            raise socket.gaierror(-2, "Name or service not known")
        self.asked += 1
        self.answers.wait(SOON_S)
        if self.fails:
            raise socket.gaierror(-3, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self.address, 0))]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    made = NameServer()
    monkeypatch.setattr(names, "socket", made)
    monkeypatch.setattr(names, "_last", {})
    yield made
    made.answers.set()
    wait_until(lambda: not names._lookups.under_way, "nobody looks anything up any more")


def awaited(host: str, seconds: float) -> list[str]:
    async def look_up() -> list[str]:
        async with asyncio.timeout(seconds):
            return await names.addresses_of_async(host)

    return asyncio.run(look_up())


BOTH = pytest.mark.parametrize("look_up", [names.addresses_of, awaited])


@BOTH
def test_a_host_that_has_moved_is_found(
    server: NameServer, look_up: Callable[[str, float], list[str]]
) -> None:
    assert look_up(HOST, SOON_S) == ["192.0.2.1"]
    server.address = "192.0.2.2"
    assert look_up(HOST, SOON_S) == ["192.0.2.2"]


@BOTH
def test_what_was_found_last_is_used_while_lookups_fail(
    server: NameServer, look_up: Callable[[str, float], list[str]]
) -> None:
    server.fails = True
    with pytest.raises(socket.gaierror):
        look_up(HOST, SOON_S)
    server.fails = False
    look_up(HOST, SOON_S)
    server.fails = True
    assert look_up(HOST, SOON_S) == ["192.0.2.1"]


def test_a_lookup_that_takes_long_is_not_waited_for(server: NameServer) -> None:
    names.addresses_of(HOST, SOON_S)
    server.answers.clear()
    began = time.monotonic()
    assert names.addresses_of(HOST, SOON_S) == ["192.0.2.1"]
    assert time.monotonic() - began < SOON_S / 2


def test_an_unknown_host_gets_no_more_than_the_callers_time(server: NameServer) -> None:
    server.answers.clear()
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=re.escape(UNKNOWN)):
        names.addresses_of(UNKNOWN, 0.02)
    assert time.monotonic() - began < SOON_S / 2


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_is_not_looked_up(server: NameServer, address: str) -> None:
    assert names.addresses_of(address, SOON_S) == [address]
    assert awaited(address, SOON_S) == [address]
    assert not server.asked


def test_a_slow_name_server_does_not_hold_up_an_answer(server: NameServer) -> None:
    """Of a store that was never found: callers get their share in the time of a decision, the first in a second."""
    server.answers.clear()
    began = time.monotonic()
    with Limiter(f"redis://{HOST}", on_error="fallback", nodes=1) as limiter:
        assert limiter.hit("key", "5/minute").source == "fallback"
    assert time.monotonic() - began < SOON_S / 2

    async def hit() -> str:
        async with AsyncLimiter(f"redis://{HOST}", on_error="fallback", nodes=1) as limiter:
            return (await limiter.hit("key", "5/minute")).source

    began = time.monotonic()
    assert asyncio.run(hit()) == "fallback"
    assert time.monotonic() - began < SOON_S / 2


def test_a_silent_name_server_is_asked_once_and_not_by_everybody(server: NameServer) -> None:
    """Connections are tried many times in a second; each would leave a thread behind for as long as it is silent."""
    names.addresses_of(HOST, SOON_S)
    server.answers.clear()
    for _ in range(5):
        assert names.addresses_of(HOST, SOON_S) == ["192.0.2.1"]

    async def look_up() -> str:
        for _ in range(5):
            assert await names.addresses_of_async(HOST) == ["192.0.2.1"]
        return await asyncio.to_thread(str, "whoever uses the loop's threads does not wait")

    began = time.monotonic()
    assert asyncio.run(look_up())
    assert time.monotonic() - began < SOON_S / 2
    assert server.asked == 2
    server.answers.set()
    wait_until(lambda: not names._lookups.under_way, "it has answered")
    server.address = "192.0.2.2"
    assert names.addresses_of(HOST, SOON_S) == ["192.0.2.2"]


def test_all_waiting_callers_get_the_result(server: NameServer) -> None:
    server.answers.clear()

    async def all_of_them() -> list[list[str]]:
        waiting = [asyncio.create_task(names.addresses_of_async(HOST)) for _ in range(10)]
        gone = asyncio.create_task(names.addresses_of_async(HOST))
        await asyncio.sleep(0)
        gone.cancel()
        server.answers.set()
        return await asyncio.gather(*waiting)

    assert asyncio.run(all_of_them()) == [["192.0.2.1"]] * 10
    assert server.asked == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_does_not_wait_for_a_lookup_of_its_parent(server: NameServer) -> None:
    server.answers.clear()
    with pytest.raises(TimeoutError):
        names.addresses_of(HOST, 0.01)
    child = os.fork()
    if not child:
        server.answers.set()
        os._exit(names.addresses_of(HOST, SOON_S) != ["192.0.2.1"])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
