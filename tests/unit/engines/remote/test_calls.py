"""Packed calls that make no sense are refused, whatever is wrong with them, and nothing is counted."""

from __future__ import annotations

import asyncio
import random
import struct
from typing import TYPE_CHECKING, Any

import pytest

from headgate import MemoryEngine, UsageError
from headgate.algorithms import (
    Adaptive,
    Calendar,
    CalendarWindow,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from headgate.algorithms.adaptive import CANDIDATES
from headgate.charge import Charge, ChargeSet
from headgate.charge_kind import ChargeKind
from headgate.engines.base import Awaited
from headgate.engines.redis.limit_numbers import limit_of, packed_limit
from headgate.engines.remote.codec import RemoteCodec
from headgate.engines.remote.serving import PackedCalls, Served

if TYPE_CHECKING:
    from headgate.algorithms import Limit

MINUTE_US = 60_000_000
BUCKET = TokenBucket(5, MINUTE_US)
LIMITS: list[Limit] = [
    *(FixedWindow(5, MINUTE_US), FixedWindow(0, MINUTE_US), SlidingWindow(700_000, 1_000_000)),
    *(SlidingLog(5, MINUTE_US), BUCKET, TokenBucket(5, MINUTE_US, 50), TokenBucket(0, MINUTE_US)),
    *(ExponentialBackoff(5, MINUTE_US, denials_per_level=3), Concurrency(5, 2_000_000)),
    *(Adaptive(5, MINUTE_US, 20, chosen) for chosen in CANDIDATES),
    CalendarWindow(5, Calendar("month", "Europe/Berlin", 3)),
]
codec = RemoteCodec("", lambda: 0)


def words_of(*requests: ChargeSet, verb: bytes = b"decide") -> list[Any]:
    """A call as it arrives: verb, number of names, names, arguments."""
    parts = [codec.part(request) for request in requests]
    _, _, *rest = codec.command((b"HG", verb), parts)
    return [verb, *(b"%d" % word if isinstance(word, int) else word for word in rest)]


def asked(engine: MemoryEngine, words: list[Any]) -> Any:
    async def ask() -> Any:
        answer = PackedCalls(Served(Awaited(engine))).call(words)
        return await answer if asyncio.iscoroutine(answer) else answer

    return asyncio.run(ask())


@pytest.mark.parametrize("limit", LIMITS, ids=repr)
def test_a_limit_comes_back_as_it_was_packed(limit: Limit) -> None:
    assert limit_of(packed_limit(limit, 1_800_000_000_000_000), limit.identity) == limit


@pytest.mark.parametrize("limit", LIMITS, ids=repr)
def test_a_limit_with_other_numbers_is_refused(limit: Limit) -> None:
    packed = packed_limit(limit, 1_800_000_000_000_000)
    code, *numbers = struct.unpack(f"<B{len(packed) // 8}d", packed)
    for wrong in (-1.0, 0.5, float("nan"), float("inf"), 2.0**60):
        with pytest.raises(UsageError):
            limit_of(struct.pack(f"<B{len(numbers)}d", code, wrong, *numbers[1:]), limit.identity)
    for bad in (packed[:-1], packed + b"\0", b"", bytes([code % 7 + 1]) + packed[1:]):
        with pytest.raises(UsageError):
            limit_of(bad, limit.identity)
    with pytest.raises(UsageError):
        limit_of(packed, "sliding_window:1")


def state(key: str = "k", limit: Limit = BUCKET) -> bytes:
    return codec.state_name(key, limit, None)


HEAD = struct.pack("<dd", 0, 0)
RULE = packed_limit(BUCKET, 0)
BAD: list[list[bytes]] = [
    [b"take"],
    [b"take", b"x", state(), RULE],
    [b"take", b"-1", state(), RULE],
    [b"take", b"2", state(), RULE],
    [b"take", b"0", RULE],
    [b"take", b"1", state(), b""],
    [b"take", b"1", state(), RULE, b"more"],
    [b"take", b"1", b"hg:s", RULE],
    [b"take", b"1", b"hg:sx:y:z:=k", RULE],
    [b"take", b"1", state().replace(b"=k", b"#k"), RULE],
    [b"take", b"1", state() + b"\xff", RULE],
    [b"take", b"1", state()[:-1], RULE],
    [b"take", b"1", state() + 9_000 * b"k", RULE],
    [b"take", b"2", state(), state("k", TokenBucket(5, 1_000_000)), RULE],
    [b"take", b"1", state("k", TokenBucket(5, 1_000_000)), RULE],
    [b"decide", b"1", state(), b""],
    [b"decide", b"1", state(), HEAD],
    [b"decide", b"1", state(), struct.pack("<dd", 1, 0) + b"\0"],
    [b"settle", b"1", b"hg:r:t", HEAD],
    [b"settle", b"1", b"hg:r:t", HEAD + struct.pack("<dd", 5, 1)],
    [b"settle", b"1", b"hg:r:", HEAD + struct.pack("<dd", 0, 1)],
    [b"settle", b"1", b"hg:r:t", HEAD + struct.pack("<dd", 0, -1)],
    [b"leave_line", b"1", state(), HEAD + struct.pack("<d", 1)],
    [b"slots", b"1", state(), HEAD + b"\1" + RULE, b"t"],
    [b"slots", b"1", state(), HEAD],
    [b"reset", b"1", b"hg:s:-:luck.1:=k", b""],
    [b"reset", b"0"],
    [b"list", b"0", b"", b"", b"", b"0"],
    [b"list", b"0", b"\xff", b"", b"", b"1"],
    [b"list", b"0", b"", b"", b""],
]


@pytest.mark.parametrize("words", BAD, ids=map(str, range(len(BAD))))
def test_a_call_that_makes_no_sense_is_refused(words: list[bytes]) -> None:
    engine = MemoryEngine()
    with pytest.raises(UsageError):
        asked(engine, words)
    assert engine.list_keys().entries == []


def test_a_call_that_is_changed_anywhere_is_refused_or_answered() -> None:
    """Nothing but a `UsageError` comes of a batch in which a byte is another, missing, or one too many."""
    chance = random.Random(5)
    whole = words_of(
        ChargeSet((Charge("a", BUCKET, 2), Charge("b", "5/minute", rule="r")), reserve_us=9, token="t"),  # noqa: S106
        ChargeSet((Charge("s", Concurrency(3)),), token="holder"),  # noqa: S106
        ChargeSet((Charge("a", BUCKET),), wait_us=1_000),
        ChargeSet((Charge("a", BUCKET, kind=ChargeKind.PEEK), Charge("c", LIMITS[-1]))),
    )  # fmt: skip
    asked(MemoryEngine(), whole)
    refused = 0
    for _ in range(2_000):
        words = list(whole)
        place = chance.randrange(1, len(words))
        word = bytearray(words[place])
        at = chance.randrange(len(word) + 1)
        match chance.randrange(3):
            case 0 if at < len(word):
                word[at] = chance.randrange(256)
            case 1:
                del word[at : at + 1]
            case _:
                word.insert(at, chance.randrange(256))
        words[place] = bytes(word)
        engine = MemoryEngine()
        try:
            asked(engine, words)
        except UsageError:
            refused += 1
            assert engine.list_keys().entries == []
    assert refused > 1_000


def test_a_namespace_is_the_nodes_own_unless_one_is_named() -> None:
    engine = MemoryEngine()
    asked(engine, words_of(ChargeSet((Charge("k", BUCKET),))))
    other = RemoteCodec("other", lambda: 0)
    _, _, *rest = other.command((b"HG", b"decide"), [other.part(ChargeSet((Charge("k", BUCKET),)))])
    asked(engine, [b"decide", *(b"%d" % one if isinstance(one, int) else one for one in rest)])
    assert engine.usage("k", BUCKET).used == 1
    assert engine.scoped("other").usage("k", BUCKET).used == 1
