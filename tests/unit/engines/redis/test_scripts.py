"""The scripts on real servers: exact at the edges of numbers, and closed to numbers that are none."""

from __future__ import annotations

import asyncio
import math
import random
import re
import struct
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ResponseError

from headgate import (
    Adaptive,
    Concurrency,
    EngineError,
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
from headgate.charge import Charge, ChargeSet
from headgate.charge_kind import ChargeKind
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.redis.codec import Codec
from headgate.engines.redis.keys import KeyCodec
from headgate.engines.redis.limit_numbers import numbers_of
from headgate.engines.redis.scripts import script
from headgate.engines.redis.sync import RedisEngine
from headgate.testing import ManualClock
from tests.servers.fixtures import on_flavours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headgate import Limit
    from headgate.decision import Decision
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
    at = 16 + 1 + 1  # whether with versions, and how many rules
    yield from (at + 1 + 8 * place for place in range(count))
    at += 1 + 8 * count
    yield at  # how many requests
    at += 8 + 2
    yield from (at + 8 * place for place in range(optional))
    yield at + 8 * optional + 2  # the cost


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0", "valkey-9")
@pytest.mark.parametrize("limit", LIMITS, ids=by_name)
def test_an_invalid_number_ends_the_script_before_it_writes(
    redis_server: RedisServer, limit: Limit, codec: Codec
) -> None:
    decide = script("decide").text
    request = ChargeSet((Charge("key", limit, 2),), wait_us=5, reserve_us=MINUTE_US, token="token")  # noqa: S106
    _, _, count, *rest = codec.command((b"", b""), [codec.part(request)])
    keys, (body, *texts) = rest[:count], rest[count:]
    for offset in doubles_in(limit, optional=2):
        for bad in BAD:
            packed = body[:offset] + struct.pack("<d", bad) + body[offset + 8 :]
            with pytest.raises(ResponseError):
                redis_server.call("EVAL", decide, count, *keys, packed, *texts)
    assert redis_server.call("DBSIZE") == 0
    # The same words with the right numbers are understood.
    assert redis_server.call("EVAL", decide, count, *keys, body, *texts)[1] == 1
    assert redis_server.call("DBSIZE") == count + 2  # A reservation, and refunds.


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
@pytest.mark.parametrize("limit", LIMITS, ids=by_name)
def test_a_mistake_in_the_last_request_of_a_batch_leaves_the_first_one_undone(
    redis_server: RedisServer, limit: Limit, codec: Codec
) -> None:
    decide = script("decide").text
    plain = codec.plain_maker(limit, None)
    careful = codec.part(ChargeSet((Charge("careful", limit),)))
    last_plain = codec.command((b"", b""), [careful, plain("plain")])
    last_careful = codec.command((b"", b""), [plain("plain"), careful])
    count = last_plain[2]

    def is_refused(
        command: list[Any], body: bytes, *, keys: int = count, more: tuple[bytes, ...] = ()
    ) -> None:
        with pytest.raises(ResponseError):
            redis_server.call("EVAL", decide, keys, *command[3 : 3 + keys], body, *more)
        assert snapshot(redis_server) == {}

    body = last_plain[-1]
    is_refused(last_plain, body[:-1] + b"\7")  # There is no rule 7.
    is_refused(last_plain, body[:-1])
    is_refused(last_plain, body + b"\0")
    is_refused(last_plain, body, keys=count - 1)
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
@pytest.mark.parametrize("limit", LIMITS, ids=by_name)
def test_no_units_are_taken_of_an_invalid_limit(
    redis_server: RedisServer, limit: Limit, codec: Codec
) -> None:
    take = script("take").text
    part = codec.plain_maker(limit, None)("key")
    _, _, count, *keys, rule, moment = codec.take_command((b"", b""), part[2], [part[1]])

    def is_refused(rule: bytes, moment: bytes) -> None:
        with pytest.raises(ResponseError):
            redis_server.call("EVAL", take, count, *keys, rule, moment)
        assert redis_server.call("DBSIZE") == 0

    for bad in (struct.pack("<d", number) for number in BAD):
        for at in range(1, len(rule), 8):
            is_refused(rule[:at] + bad + rule[at + 8 :], moment)
        for at in (0, 8):
            is_refused(rule, moment[:at] + bad + moment[at + 8 :])
    is_refused(b"\x63" + rule[1:], moment)  # There is no such algorithm.
    is_refused(rule + b"\0", moment)
    is_refused(rule[:-1], moment)
    is_refused(b"", moment)
    assert redis_server.call("EVAL", take, count, *keys, rule, moment)[1] == 1
    assert redis_server.call("DBSIZE") == count


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
def test_more_limits_than_a_server_remembers_are_counted_all_the_same(
    redis_server: RedisServer,
) -> None:
    engine = RedisEngine(redis_server.url, clock=ManualClock(NOW_US / 1e6))
    for _ in range(2):
        for number in range(1, 1_203):
            decision = engine.bind(TokenBucket(number, MINUTE_US))(f"key:{number}", 1)
            assert decision.limit == number
    again = [engine.bind(TokenBucket(number, MINUTE_US))(f"key:{number}", 1) for number in (1, 3)]
    assert [bool(one) for one in again] == [False, True]
    assert again[1].remaining == 0
    engine.close()


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
def test_settling_and_slots_refuse_invalid_numbers(redis_server: RedisServer, codec: Codec) -> None:
    engine = RedisEngine(redis_server.url, clock=ManualClock(NOW_US / 1e6))
    slots, bucket = Concurrency(2, MINUTE_US), TokenBucket(2, MINUTE_US)
    (held,) = engine.decide([ChargeSet((Charge("key", bucket),), reserve_us=MINUTE_US)])
    engine.decide([ChargeSet((Charge("key", slots),), token="token")])  # noqa: S106
    assert held.token is not None
    before = snapshot(redis_server)
    head = codec.head()
    calls = {
        "settle": (codec.records(held.token)[0].name, head + struct.pack("<dd", 0, 0)),
        "slots": (codec.state_name("key", slots, None), head + b"\0" + codec.rule(slots)),
        "leave_line": (
            codec.state_name("key", bucket, None),
            head + struct.pack("<d", 1) + codec.rule(bucket),
        ),
    }
    places = {
        "settle": [0, 8, 16, 24],
        "slots": [0, 8, 18, 26],
        "leave_line": [0, 8, 16, 25, 33, 41],
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
            for kind in (
                ChargeKind.PEEK,
                ChargeKind.TAKE,
                ChargeKind.TAKE,
                ChargeKind.FORCE,
                ChargeKind.TAKE,
            ):
                try:
                    (decision,) = engine.decide(
                        [ChargeSet((Charge("key", limit, cost, kind=kind),))]
                    )
                except UsageError as error:
                    answers.append(str(error))
                else:
                    answers.append(decision.answer)
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
                (decision,) = engine.decide([ChargeSet((Charge("key", limit, cost),))])
                (again,) = engine.decide(
                    [ChargeSet((Charge("key", limit, 1, kind=ChargeKind.PEEK),))]
                )
                answers.append((decision.answer, again.answer, engine.usage("key", limit)))
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
    assert (
        15_000 < redis_server.call("PTTL", name) <= 16_001
    )  # 5 s of backlog, 10 s that the clock may step back, and 1 s.
    engine.close()


# --- what is not a state of ours -----------------------------------------------------------------

FOREIGN: dict[str, Callable[[RedisServer, bytes], object]] = {
    "short text": lambda server, name: server.call("SET", name, "x"),
    "long text": lambda server, name: server.call("SET", name, b"\xff" * 200),
    "a list": lambda server, name: server.call("RPUSH", name, "x"),
    "a sorted set": lambda server, name: server.call("ZADD", name, 1, "x"),
    "a hash": lambda server, name: server.call("HSET", name, "x", "y"),
    "a hash with a short holder": lambda server, name: server.call(
        "HSET", name, "limit", "3", "=token", "y"
    ),
}


@pytest.mark.parametrize("limit", LIMITS, ids=by_name)
@pytest.mark.parametrize("what", FOREIGN)
@on_flavours("redis_server", "redis-7.0", "valkey-9")
def test_a_state_that_is_not_ours_fails_its_own_request_only(
    redis_server: RedisServer, codec: Codec, limit: Limit, what: str
) -> None:
    bad = codec.state_name("bad", limit, None)
    FOREIGN[what](redis_server, bad)
    before = redis_server.call("DUMP", bad)

    async def ask() -> list[Any]:
        engine = AsyncRedisEngine(redis_server.url, clock=ManualClock(NOW_US / 1e6))
        hit: Any = engine.bind(limit)
        several = ChargeSet((Charge("other", limit), Charge("bad", limit)))
        reserving = ChargeSet((Charge("bad", limit),), reserve_us=MINUTE_US)
        answers = await asyncio.gather(
            hit("a", 1), hit("bad", 1), engine.decide([several]), engine.decide([reserving]),
            hit("b", 1), hit("a", 2), return_exceptions=True,
        )  # fmt: skip
        used = (await engine.usage("other", limit)).used
        with pytest.raises(EngineError, match="'bad' is not a Headgate state"):
            await engine.usage("bad", limit)
        await engine.aclose()
        return [*answers, used]

    first, *failed, other, last, used = asyncio.run(ask())
    assert (first.remaining, other.remaining, last.remaining, used) == (2, 2, 0, 0)
    for error in failed:
        assert isinstance(error, EngineError)
        assert "is not a Headgate state" in str(error)
        assert not error.transient
    assert redis_server.call("DUMP", bad) == before
    assert not redis_server.call("KEYS", "hg:[rf]*")

    engine = RedisEngine(redis_server.url, clock=ManualClock(NOW_US / 1e6))
    with pytest.raises(EngineError, match="'bad' is not a Headgate state"):
        engine.bind(limit)("bad", 1)
    with pytest.raises(EngineError, match="'bad' is not a Headgate state"):
        engine.usage("bad", limit)
    engine.reset("bad", limit)
    assert engine.bind(limit)("bad", 1)
    engine.close()


@on_flavours("redis_server", "redis-7.0")
def test_settling_and_slots_change_nothing_when_a_state_is_not_ours(
    redis_server: RedisServer, codec: Codec
) -> None:
    engine = RedisEngine(redis_server.url, clock=ManualClock(NOW_US / 1e6))
    slots, bucket = Concurrency(2, MINUTE_US), TokenBucket(2, MINUTE_US)
    charges = (Charge("good", bucket), Charge("bad", bucket))
    (held,) = engine.decide([ChargeSet(charges, reserve_us=MINUTE_US)])
    (line,) = engine.decide([ChargeSet((Charge("bad", bucket, 2),), wait_us=10 * MINUTE_US)])
    assert held.token is not None
    redis_server.call("SET", codec.state_name("bad", bucket, None), "x")
    redis_server.call("SET", codec.state_name("bad", slots, None), "x")
    before = snapshot(redis_server)
    with pytest.raises(EngineError, match="is not a Headgate state"):
        engine.settle(held.token, 0)
    with pytest.raises(EngineError, match="is not a Headgate state"):
        engine.leave_line(line)
    with pytest.raises(EngineError, match="is not a Headgate state"):
        engine.renew("bad", slots, "token")
    with pytest.raises(EngineError, match="is not a Headgate state"):
        engine.release("bad", slots, "token")
    assert snapshot(redis_server) == before
    engine.close()


# --- reset and reservations ----------------------------------------------------------------------


@pytest.mark.parametrize("limit", LIMITS, ids=by_name)
@pytest.mark.parametrize("actual", [0, 1, 3])
@on_flavours("redis_server", "redis-7.0")
def test_a_reset_ends_the_reservations_of_its_key_and_of_no_other(
    redis_server: RedisServer, limit: Limit, actual: int
) -> None:
    """Also when the key is reserved anew before the old one is settled, and at the same moment."""
    clock = ManualClock(NOW_US / 1e6)
    for engine in (RedisEngine(redis_server.url, clock=clock), MemoryEngine(clock=clock)):

        def reserve(*keys: str, token: str, engine: Any = engine) -> None:
            charges = tuple(Charge(key, limit) for key in keys)
            assert engine.decide([ChargeSet(charges, reserve_us=MINUTE_US, token=token)])[0]

        reserve("a", token="one")  # noqa: S106
        reserve("a", "b", token="two")  # noqa: S106
        reserve("b", token="three")  # noqa: S106
        engine.reset("a", limit)
        reserve("a", token="four")  # noqa: S106
        reserve("a", token="one")  # noqa: S106 - The name is free again.
        assert not engine.settle("two", actual)
        assert (engine.usage("a", limit).used, engine.usage("b", limit).used) == (2, 2)
        assert engine.settle("three", 0)
        assert engine.usage("b", limit).used == 1
        assert engine.settle("four", 0)
        assert engine.settle("one", 0)
        assert engine.usage("a", limit).used == 0
        engine.close()


@on_flavours("redis_server", "redis-7.0")
def test_the_name_of_a_reservation_is_free_when_its_time_is_over(redis_server: RedisServer) -> None:
    clock = ManualClock(NOW_US / 1e6)
    engine = RedisEngine(redis_server.url, clock=clock)
    charge = Charge("key", FixedWindow(9, LONGEST_US))
    request = ChargeSet((charge,), reserve_us=1_000, token="name")  # noqa: S106
    engine.decide([request])
    clock.advance(us=999)
    with pytest.raises(UsageError):
        engine.decide([request])
    clock.advance(us=1)
    assert engine.decide([request])[0]
    assert engine.settle("name", 0)
    assert engine.usage("key", FixedWindow(9, LONGEST_US)).used == 1
    engine.close()


# --- receipts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [FixedWindow(20, LONGEST_US), SlidingLog(20, MINUTE_US)])
@on_flavours("redis_server", "redis-7.0", "valkey-9")
def test_receipts_number_the_decisions_of_a_key_across_callers(
    redis_server: RedisServer, limit: Limit
) -> None:
    """Plain hits, peeks, denials and requests of several charges; now never runs back."""

    async def ask() -> list[Decision]:
        engines = [AsyncRedisEngine(f"{redis_server.url}?receipts=yes") for _ in range(3)]
        several = ChargeSet((Charge("key", limit), Charge("other", limit), Charge("key", limit)))
        peek = ChargeSet((Charge("key", limit, kind=ChargeKind.PEEK),))
        reserve = ChargeSet((Charge("key", limit),), reserve_us=MINUTE_US)
        asked: list[Any] = []
        for _ in range(5):
            for engine in engines:
                asked += [engine.bind(limit)("key", 1), engine.bind(limit)("key", 2)]
                asked += [engine.decide([one]) for one in (peek, several, reserve)]
        answers = await asyncio.gather(*asked)
        for engine in engines:
            await engine.aclose()
        flat = [one for answer in answers for one in (answer if type(answer) is list else [answer])]
        return [rule for one in flat for rule in one.rules]

    decisions = asyncio.run(ask())
    blocking = RedisEngine(f"{redis_server.url}?receipts=yes")
    decisions += [blocking.bind(limit)("key", 1), blocking.bind(limit)("key", 21)]
    for key, count in (("key", 5 * 3 * 6 + 2), ("other", 5 * 3)):
        receipts = sorted(one.receipt for one in decisions if one.key == key and one.receipt)
        assert [one.version for one in receipts] == list(range(1, count + 1))
        times = [one.now_us for one in receipts]
        assert times == sorted(times)
    assert any(not one for one in decisions)
    assert blocking.usage("key", limit).used <= 20
    for name in redis_server.call("KEYS", "hg:v*"):
        assert redis_server.call("PTTL", name) > 3_500_000
    blocking.close()
    silent = RedisEngine(redis_server.url)
    assert silent.bind(limit)("key", 1).receipt is None
    silent.close()


# --- the log in a batch, and slots held under a name ---------------------------------------------


@on_flavours("redis_server", "redis-7.0")
def test_a_long_log_is_appended_to_and_cut_when_most_of_it_has_left(
    redis_server: RedisServer,
) -> None:
    clock = ManualClock(NOW_US / 1e6)
    engine = RedisEngine(redis_server.url, clock=clock)
    limit = SlidingLog(10_000, MINUTE_US)

    def hit(times: int) -> int:
        redis_server.call("CONFIG", "RESETSTAT")
        engine.decide([ChargeSet((Charge("key", limit),))] * times)
        written = re.search(r"cmdstat_set:calls=(\d+)", redis_server.call("INFO", "commandstats"))
        return int(written[1]) if written else 0

    (name,) = [engine._operations.codec.state_name("key", limit, None)]
    assert hit(100) == 8  # As long as it is short it is written anew.
    clock.advance(us=MINUTE_US - 1)
    assert hit(99) == 0
    assert redis_server.call("STRLEN", name) == 199 * 32
    clock.advance(us=1)  # A hundred have left, and with the next one that is half.
    assert hit(1) == 0
    assert hit(1) == 0
    assert redis_server.call("STRLEN", name) == 201 * 32
    clock.advance(us=MINUTE_US - 1)
    assert hit(1) == 1
    assert redis_server.call("STRLEN", name) == 3 * 32
    clock.advance(us=-7)
    assert hit(100) > 0  # They are counted at the key's time, behind those that came before.
    assert engine.usage("key", limit).used == 103
    engine.close()


@on_flavours("redis_server", "redis-7.0")
def test_slots_held_or_reserved_under_a_name_are_answered_as_in_memory(
    redis_server: RedisServer,
) -> None:
    choose = random.Random(7)
    for seed in range(25):
        clock = ManualClock(NOW_US / 1e6)
        redis = RedisEngine(redis_server.url, clock=clock).scoped(f"{seed}")
        memory = MemoryEngine(clock=clock)
        told: list[Any] = []
        for _ in range(40):
            clock.advance(us=choose.choice([0, 0, 1, 10_000_000, 40_000_000]))
            limit = Concurrency(choose.choice([2, 3, 5]), choose.choice([MINUTE_US, 2 * MINUTE_US]))
            token, cost = f"{seed}{choose.choice('abc')}", choose.randint(0, 4)
            reserve_us = choose.choice([0, 0, 1_000, MINUTE_US])
            action = choose.random()
            request = ChargeSet((Charge("key", limit, cost),), reserve_us=reserve_us, token=token)

            def done(
                engine: Any,
                action: float = action,
                request: ChargeSet = request,
                token: str = token,
                limit: Concurrency = limit,
            ) -> Any:
                try:
                    if action < 0.6:
                        (decision,) = engine.decide([request])
                        return decision.answer, decision.token, engine.usage("key", limit)
                    if action < 0.8:
                        return engine.settle(token, 1), engine.usage("key", limit)
                    if action < 0.85:
                        return engine.reset("key", limit)
                    if action < 0.95:
                        return engine.renew("key", limit, token)
                    return engine.release("key", limit, token)
                except UsageError as error:
                    return str(error)

            told.append((action, request, done(redis), done(memory)))
            assert told[-1][2] == told[-1][3], told
        redis.close()
