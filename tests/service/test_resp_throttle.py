"""`CL.THROTTLE` answers as redis-cell does, by its documentation and by a model of it, over a real socket."""

from __future__ import annotations

import random
import socket
from typing import TYPE_CHECKING

import hiredis
import pytest

from headgate import MemoryEngine
from headgate.engines.redis.packing import packed_command
from headgate.testing import ManualClock
from tests.servers.process import HOST
from tests.service.redis_cell import CellAnswer, CellCommand, RedisCell
from tests.service.resp_node import resp_node

if TYPE_CHECKING:
    from collections.abc import Iterator

START = 1_800_000_000.0
EXACT_US = 256
"""In fractions of a microsecond that fine is a bucket's rate counted; one that fits has no rounding at all."""


class Asking:
    """A connection that asks for one thing at a time, and for many at once."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), 20)
        self._reader = hiredis.Reader()

    def ask(self, *commands: tuple[object, ...]) -> list[object]:
        sent = b"".join(packed_command(map(str, command)) for command in commands)
        self._socket.sendall(sent)
        replies: list[object] = []
        while len(replies) < len(commands):
            reply = self._reader.gets()
            if reply is False:
                data = self._socket.recv(65_536)
                assert data, "the node has closed the connection"
                self._reader.feed(data)
            else:
                replies.append(reply)
        return replies

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def asking(clock: ManualClock) -> Iterator[Asking]:
    with resp_node(MemoryEngine(clock=clock)) as node:
        asking = Asking(node.port)
        yield asking
        asking.close()


def test_the_example_of_redis_cell_is_answered_as_there(asking: Asking) -> None:
    assert asking.ask(("CL.THROTTLE", "user123", 15, 30, 60)) == [[0, 16, 15, -1, 2]]
    assert asking.ask(("CL.THROTTLE", "user123", 15, 30, 60, 15)) == [[0, 16, 0, -1, 32]]
    assert asking.ask(("CL.THROTTLE", "user123", 15, 30, 60)) == [[1, 16, 0, 2, 32]]
    assert asking.ask(("CL.THROTTLE", "user123", 15, 30, 60, 17)) == [[1, 16, 0, -1, 32]]


def random_limit(chance: random.Random, *, exact: bool) -> tuple[int, int, int]:
    """`(max_burst, count, period)`; an exact one has no fractions that a bucket would round."""
    while True:
        period = chance.choice((1, 2, 5, 10, 60, 60, 300, 3_600, 86_400))
        count = chance.choice((1, 2, 3, 5, 7, 10, 16, 30, 60, 100, chance.randint(1, 1_000)))
        if not exact or period * 1_000_000 * EXACT_US % count == 0:
            return chance.choice((0, 1, 2, 5, 15, 30, chance.randint(0, 200))), count, period


def test_six_thousand_random_commands_are_answered_as_redis_cell_would(
    asking: Asking, clock: ManualClock
) -> None:
    """To the unit and to the second, pipelined or not, with costs that never fit and costs of 0."""
    chance, cell = random.Random(15), RedisCell()
    asked = 0
    limits = [random_limit(chance, exact=True) for _ in range(60)]
    while asked < 6_000:
        number = chance.randrange(len(limits))
        max_burst, count, period = limits[number]
        commands = []
        for _ in range(chance.choice((1, 1, 2, 16))):
            quantity = chance.choice((0, 1, 1, 1, 2, 3, max_burst + 1, max_burst + 2))
            many = chance.choice((1, 1, 3))
            commands += many * [(f"key:{number}:{chance.randrange(3)}", quantity)]
        now_ns = clock.now_us() * 1_000
        told = [CellCommand(key, max_burst, count, period, cost) for key, cost in commands]
        expected = [list(cell.throttle(command, now_ns)) for command in told]
        replies = asking.ask(*(("CL.THROTTLE", *command) for command in told))
        assert replies == expected, (told, clock.now_us())
        asked += len(commands)
        interval_us = max(1, period * 1_000_000 // count)
        steps = (0, 0, 1, 999, interval_us // 2, interval_us, 2 * interval_us, period * 1_000_000)
        clock.advance(chance.choice(steps) / 1_000_000)


def test_rates_with_fractions_differ_from_redis_cell_by_microseconds_only(
    asking: Asking, clock: ManualClock
) -> None:
    """redis-cell rounds 60 s / 7 down, to a nanosecond or a microsecond, and a bucket up to 1/256 of a microsecond.

    So an answer is that of redis-cell now, or a few microseconds earlier or later: one for each token.
    """
    chance, cell = random.Random(7), RedisCell()
    limits = [random_limit(chance, exact=False) for _ in range(60)]
    for _ in range(1_500):
        number = chance.randrange(len(limits))
        max_burst, count, period = limits[number]
        key, quantity = f"key:{number}", chance.choice((0, 1, 1, 2, max_burst + 1))
        asked = CellCommand(key, max_burst, count, period, quantity)
        now_ns = clock.now_us() * 1_000
        slack_ns = 3_000 + 1_000 * (max_burst + 1 + quantity)
        near = {cell.look(asked, now_ns + ns)[0] for ns in (-slack_ns, 0, slack_ns)}
        (reply,) = asking.ask(("CL.THROTTLE", *asked))
        assert isinstance(reply, list)
        answer = CellAnswer(*reply)
        for place, value in enumerate(answer):
            assert min(one[place] for one in near) <= value <= max(one[place] for one in near), (
                asked,
                answer,
                near,
            )
        if not answer.limited:
            cell.arrivals_ns[key] = cell.look(asked, now_ns)[1]
        clock.advance(chance.choice((0, 0.000_001, 0.25, period / count, period / 3, period)))
