"""What callers are told when a server does not do its part, and that it is theirs alone."""

from __future__ import annotations

import asyncio
import pickle
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import hiredis
import pytest

from headgate import EngineConnectionError, EngineError, EngineTimeout, FixedWindow
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.redis.sync import RedisEngine
from tests.servers.process import HOST, free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT = FixedWindow(1_000, 250 * 86_400_000_000)
KINDS = pytest.mark.parametrize("kind", [AsyncRedisEngine, RedisEngine])


@contextmanager
def server(answer: Callable[[socket.socket, bytes], None]) -> Iterator[str]:
    """A server that does `answer` about all that is sent to it; its address as a URL."""
    listening = socket.create_server((HOST, 0))
    opened: list[socket.socket] = [listening]

    def serve(one: socket.socket) -> None:
        try:
            while data := one.recv(65_536):
                answer(one, data)
        except OSError:
            pass
        finally:
            one.close()

    def accept() -> None:
        while True:
            try:
                one, _ = listening.accept()
            except OSError:
                return
            opened.append(one)
            threading.Thread(target=serve, args=(one,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"redis://{HOST}:{listening.getsockname()[1]}?deadline=0.4&connect_timeout=0.4"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        for one in opened:
            one.close()


def outcomes(kind: Any, url: str, callers: int = 1, rounds: int = 1) -> list[Any]:
    """What callers are told who ask at the same time, in each round."""

    async def main() -> list[Any]:
        engine = AsyncRedisEngine(url)
        hit: Any = engine.bind(LIMIT)
        told: list[Any] = []
        for _ in range(rounds):
            asked = [asyncio.ensure_future(hit("key", 1)) for _ in range(callers)]
            told += await asyncio.gather(*asked, return_exceptions=True)
        await engine.aclose()
        return told

    if kind is AsyncRedisEngine:
        return asyncio.run(main())
    engine = RedisEngine(url)
    told: list[Any] = []
    engine._eviction_checked = True  # One thing less that the server is asked.
    hit = engine.bind(LIMIT)
    for _ in range(rounds * callers):
        try:
            told.append(hit("key", 1))
        except EngineError as error:
            told.append(error)
    engine.close()
    return told


@KINDS
def test_a_refused_connection_has_its_own_error(kind: Any) -> None:
    (port,) = free_ports(1)
    (error,) = outcomes(kind, f"redis://{HOST}:{port}?deadline=0.1")
    assert type(error) is EngineConnectionError
    assert (error.transient, error.indefinite) == (True, False)


@KINDS
def test_a_timeout_has_its_own_error(kind: Any) -> None:
    with server(lambda *_: None) as url:
        (error,) = outcomes(kind, url)
    assert type(error) is EngineTimeout
    assert (error.transient, error.indefinite) == (True, True)


@KINDS
def test_a_connection_that_breaks_before_the_answer_is_no_time_out(kind: Any) -> None:
    with server(lambda one, _: one.close()) as url:
        (error,) = outcomes(kind, url)
    assert type(error) is EngineConnectionError
    assert (error.transient, error.indefinite) == (True, True)


def test_kinds_survive_pickling() -> None:
    for kind in (EngineError, EngineConnectionError, EngineTimeout):
        packed = pickle.dumps(kind("words", transient=True, indefinite=True))
        error = pickle.loads(packed)  # noqa: S301 - our own
        assert (type(error), str(error)) == (kind, "words")
        assert (error.transient, error.indefinite) == (True, True)


@pytest.mark.parametrize(
    "answer",
    [lambda one, _: one.close(), lambda one, _: one.sendall(b"-ERR no\r\n")],
    ids=["closed", "refused"],
)
def test_each_caller_of_a_failed_batch_gets_its_own_error(answer: Any) -> None:
    with server(answer) as url:
        errors = outcomes(AsyncRedisEngine, url, callers=8)
    assert all(isinstance(error, EngineError) for error in errors)
    assert len({id(error) for error in errors}) == 8
    assert len({str(error) for error in errors}) == 1
    assert all(error.__cause__ is not None for error in errors)


@pytest.mark.parametrize("surplus", [b"", b"*6\r\n:1\r\n"], ids=["whole", "part"])
@pytest.mark.parametrize("callers", [1, 40])
@KINDS
def test_a_reply_too_many_never_reaches_the_next_caller(
    kind: Any, callers: int, surplus: bytes
) -> None:
    """The extra one comes in the packet of the right one, and admits somebody who was not asked about."""

    def answer(one: socket.socket, data: bytes) -> None:
        reader = hiredis.Reader()
        reader.feed(data)
        while command := reader.gets():
            if command[0] != b"FCALL":
                one.sendall(b"$0\r\n\r\n")
                continue
            count = int(command[2])
            right = b"*%d\r\n:1\r\n" % (1 + 5 * count)
            right += count * b":1\r\n:500\r\n:0\r\n:0\r\n:0\r\n"
            one.sendall(right + (surplus or right.replace(b":500", b":666")))

    with server(answer) as url:
        told = outcomes(kind, f"{url}&max_batch=8&max_in_flight=1", callers, rounds=3)
    answered = [one for one in told if not isinstance(one, Exception)]
    assert {one.remaining for one in answered} == {500}
    assert answered
