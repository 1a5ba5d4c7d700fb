"""The scripts on real servers: exact at the edges of numbers, and closed to numbers that are none."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ResponseError

from headgate import (
    Adaptive,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    MemoryEngine,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
    UsageError,
)
from headgate.algorithms import CalendarWindow
from headgate.algorithms.calendar import Calendar
from headgate.charge import Charge, Kind, Request
from headgate.engines.redis.codec import Codec, numbers_of
from headgate.engines.redis.keys import KeyCodec
from headgate.engines.redis.scripts import script
from headgate.engines.redis.sync import RedisEngine
from headgate.testing import ManualClock
from tests.servers.fixtures import on_flavours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headgate import Limit
    from tests.servers.redis import RedisServer

MAX_EXACT = 2**53 - 1
MINUTE_US = 60_000_000
LONGEST_US = 366 * 86_400_000_000
NOW_US = 1_800_000_000_000_000

BAD = [math.nan, math.inf, -math.inf, -1.0, -0.5, 1.5, 2.0**53, 1e300, 5e-324]
LIMITS: list[Limit] = [
    FixedWindow(3, MINUTE_US),
    CalendarWindow(3, calendar=Calendar("day", "UTC")),
    SlidingWindow(3, MINUTE_US),
    SlidingLog(3, MINUTE_US),
    TokenBucket(3, MINUTE_US),
    ExponentialBackoff(3, MINUTE_US),
    Adaptive(3, MINUTE_US),
    Concurrency(3, MINUTE_US),
]


def by_name(limit: Limit) -> str:
    return type(limit).__name__


@pytest.fixture
def codec() -> Codec:
    return Codec(KeyCodec(), lambda: NOW_US, test_clock=True)


def snapshot(server: RedisServer) -> dict[str, str]:
    return {name: server.call("DUMP", name) for name in server.call("KEYS", "*")}


def doubles_in(limit: Limit, *, optional: int = 0) -> Iterator[int]:
    """Where the numbers of a packed request of one step are."""
    count = len(numbers_of(limit, NOW_US))
    yield from (0, 8)  # now_us and ttl_floor_ms
    at = 16 + 1  # how many rules
    yield from (at + 1 + 8 * place for place in range(count))
    at += 1 + 8 * count
    yield at  # how many requests
    at += 8 + 2
    yield from (at + 8 * place for place in range(optional))
    yield at + 8 * optional + 2  # the cost


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0", "valkey-9")
@pytest.mark.parametrize("limit", LIMITS, ids=by_name)
def test_a_number_that_is_none_ends_the_script_before_it_writes(
    redis_server: RedisServer, limit: Limit, codec: Codec
) -> None:
    decide = script("decide").text
    request = Request((Charge("key", limit, 2),), wait_us=5, reserve_us=MINUTE_US, token="token")  # noqa: S106
    _, _, count, key, body, *texts = codec.command(b"", [codec.part(request)])
    for offset in doubles_in(limit, optional=2):
        for bad in BAD:
            packed = body[:offset] + struct.pack("<d", bad) + body[offset + 8 :]
            with pytest.raises(ResponseError):
                redis_server.call("EVAL", decide, count, key, packed, *texts)
    assert redis_server.call("DBSIZE") == 0
    # The same words with the right numbers are understood.
    assert redis_server.call("EVAL", decide, count, key, body, *texts)[1] == 1
    assert redis_server.call("DBSIZE") == 3


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
@pytest.mark.parametrize("limit", LIMITS, ids=by_name)
def test_a_mistake_in_the_last_request_of_a_batch_leaves_the_first_one_undone(
    redis_server: RedisServer, limit: Limit, codec: Codec
) -> None:
    decide = script("decide").text
    plain = codec.plain_maker(limit, None)
    careful = codec.part(Request((Charge("careful", limit),)))
    last_plain = codec.command(b"", [careful, plain("plain")])
    last_careful = codec.command(b"", [plain("plain"), careful])

    def is_refused(
        command: list[Any], body: bytes, *, keys: int = 2, more: tuple[bytes, ...] = ()
    ) -> None:
        with pytest.raises(ResponseError):
            redis_server.call("EVAL", decide, keys, *command[3 : 3 + keys], body, *more)
        assert snapshot(redis_server) == {}

    body = last_plain[-1]
    is_refused(last_plain, body[:-1] + b"\7")  # There is no rule 7.
    is_refused(last_plain, body[:-1])
    is_refused(last_plain, body + b"\0")
    is_refused(last_plain, body, keys=1)
    is_refused(last_plain, body, more=(b"a token that nobody asked for",))
    body = last_careful[-1]
    step = len(body) - 10
    is_refused(last_careful, body[:step] + b"\7" + body[step + 1 :])
    is_refused(last_careful, body[: step + 1] + b"\7" + body[step + 2 :])  # There is no kind 7.
    for bad in BAD:
        is_refused(last_careful, body[:-8] + struct.pack("<d", bad))
    is_refused(last_careful, b"")


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
def test_settling_and_slots_refuse_numbers_that_are_none(
    redis_server: RedisServer, codec: Codec
) -> None:
    engine = RedisEngine(redis_server.url, clock=ManualClock(NOW_US / 1e6))
    slots, bucket = Concurrency(2, MINUTE_US), TokenBucket(2, MINUTE_US)
    (held,) = engine.decide([Request((Charge("key", bucket),), reserve_us=MINUTE_US)])
    engine.decide([Request((Charge("key", slots),), token="token")])  # noqa: S106
    assert held.token is not None
    before = snapshot(redis_server)
    head = codec.head()
    calls = {
        "settle": (codec.record_name(held.token), head + struct.pack("<d", 0)),
        "slots": (codec.state_name("key", slots, None), head + b"\0" + codec.rule(slots)),
        "leave_line": (
            codec.state_name("key", bucket, None),
            head + struct.pack("<ddd", 1, 1, 1) + codec.rule(bucket),
        ),
    }
    places = {
        "settle": [0, 8, 16],
        "slots": [0, 8, 18, 26],
        "leave_line": [0, 8, 16, 24, 32, 41, 49, 57],
    }
    for name, (key, body) in calls.items():
        for at in places[name]:
            for bad in BAD:
                packed = body[:at] + struct.pack("<d", bad) + body[at + 8 :]
                with pytest.raises(ResponseError):
                    redis_server.call("EVAL", script(name).text, 1, key, packed, "token")
        assert snapshot(redis_server) == before
    engine.close()


def play(
    engine: Any, clock: ManualClock, limit: Limit, costs: list[int], moves: list[int]
) -> list[Any]:
    answers: list[Any] = []
    for move in moves:
        clock.advance(us=move)
        for cost in costs:
            for kind in (Kind.PEEK, Kind.TAKE, Kind.TAKE, Kind.FORCE, Kind.TAKE):
                try:
                    (decision,) = engine.decide([Request((Charge("key", limit, cost, kind=kind),))])
                except UsageError as error:
                    answers.append(str(error))
                else:
                    answers.append(decision._answer)
            answers.append(engine.usage("key", limit))
    return answers


def largest(make: Callable[[int], Limit]) -> int:
    """The largest number that a limit can be built with."""
    low, high = 1, MAX_EXACT + 1
    while high - low > 1:
        middle = (low + high) // 2
        try:
            make(middle)
        except UsageError:
            high = middle
        else:
            low = middle
    return low


MAKERS: dict[str, Callable[[int], Limit]] = {
    "fixed_window": lambda limit: FixedWindow(limit, MINUTE_US),
    "fixed_window, longest": lambda limit: FixedWindow(limit, LONGEST_US),
    "sliding_window": lambda limit: SlidingWindow(limit, MINUTE_US),
    "sliding_window, longest": lambda limit: SlidingWindow(limit, LONGEST_US),
    "sliding_window, shortest": lambda limit: SlidingWindow(limit, 1_000),
    "sliding_log": lambda limit: SlidingLog(limit, LONGEST_US),
    "token_bucket": lambda limit: TokenBucket(limit, MINUTE_US),
    "token_bucket, longest": lambda limit: TokenBucket(limit, LONGEST_US),
    "token_bucket, largest burst": lambda burst: TokenBucket(1, MINUTE_US, burst),
    "exponential_backoff": lambda limit: ExponentialBackoff(limit, LONGEST_US),
    "adaptive": lambda limit: Adaptive(limit, LONGEST_US),
    "concurrency": lambda limit: Concurrency(limit, MINUTE_US),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("start_us", [NOW_US, MAX_EXACT - 4 * LONGEST_US], ids=["now", "2251"])
def test_lua_equals_python_at_the_largest_numbers(
    redis_server: RedisServer, name: str, start_us: int
) -> None:
    """Also in a year in which a microsecond of the clock is nearly too large for a double."""
    top = largest(MAKERS[name])
    for number, size in enumerate((top, top - 1, (top + 1) // 2)):
        limit = MAKERS[name](size)
        span = max(limit.window_us, 1_000)
        moves = [0, 1, span // 3, span - 1, 1, -span // 2]
        costs = [1, size - 1, size, size + 1, MAX_EXACT - 1, MAX_EXACT]
        if isinstance(limit, SlidingLog):  # Its sum must not be full before the end of the test.
            costs[-2:] = [2**48]
        costs = [cost for cost in costs if 0 <= cost <= MAX_EXACT]
        clock, model_clock = ManualClock(0), ManualClock(0)
        clock.advance(us=start_us)
        model_clock.advance(us=start_us)
        engine = RedisEngine(redis_server.url, clock=clock).scoped(f"{number}")
        expected = play(MemoryEngine(clock=model_clock), model_clock, limit, costs, moves)
        answers = play(engine, clock, limit, costs, moves)
        engine.close()
        assert answers == expected


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS, ids=by_name)
def test_lua_equals_python_around_the_end_of_a_state(
    redis_server: RedisServer, limit: Limit
) -> None:
    """One microsecond before a state ends, at its end, and one after; there and back."""
    for number, cost in enumerate((1, limit.limit)):
        clock, model_clock = ManualClock(NOW_US / 1e6), ManualClock(NOW_US / 1e6)
        redis = RedisEngine(redis_server.url, clock=clock).scoped(f"{number}")
        memory = MemoryEngine(clock=model_clock)
        for turn in range(40):
            answers = []
            for engine, its_clock in ((redis, clock), (memory, model_clock)):
                (decision,) = engine.decide([Request((Charge("key", limit, cost),))])
                (again,) = engine.decide([Request((Charge("key", limit, 1, kind=Kind.PEEK),))])
                answers.append((decision._answer, again._answer, engine.usage("key", limit)))
                reset_us = round(again.reset_after * 1e6)
                moves = [
                    reset_us - 1,
                    1,
                    reset_us,
                    reset_us + 1,
                    -reset_us,
                    max(0, again.retry_after_us),
                ]
                its_clock.advance(us=moves[turn % len(moves)])
            if answers[0] != answers[1]:
                redis.close()
            assert answers[0] == answers[1], turn
        redis.close()


@on_flavours("redis_server", "redis-7.0", "redis-8", "valkey-9")
def test_a_state_lives_as_long_as_it_matters_and_little_longer(redis_server: RedisServer) -> None:
    engine = RedisEngine(redis_server.url)
    engine.bind(TokenBucket(10, 10_000_000))("key", 5)
    (name,) = redis_server.call("KEYS", "*")
    assert 5_000 < redis_server.call("PTTL", name) <= 6_001
    engine.close()
