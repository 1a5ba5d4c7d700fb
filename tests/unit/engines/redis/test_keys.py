"""Names of states: injective, readable back, in one slot, and with an end."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from headgate import FixedWindow, SlidingLog, TokenBucket, UsageError
from headgate.charge import Charge, ChargeSet
from headgate.engines.redis.codec import MAX_KNOWN, Codec
from headgate.engines.redis.cross_slot import groups_of
from headgate.engines.redis.keys import KeyCodec, slot_of
from headgate.engines.redis.sync import RedisEngine
from headgate.testing.story import all_stories, replay
from tests.servers.fixtures import on_flavours

if TYPE_CHECKING:
    from headgate import Limit
    from headgate.testing import ManualClock
    from tests.servers.redis import Cluster, RedisServer

MINUTE_US = 60_000_000
LIMITS: list[Limit] = [
    FixedWindow(3, MINUTE_US),
    FixedWindow(3, 2 * MINUTE_US),
    SlidingLog(3, MINUTE_US),
    TokenBucket(3, MINUTE_US),
]
HOSTILE = [
    "}", "{", "{}", "}x", "{a}b", "a{b", "\0", "a\0b", "a\nb", "\r\n", "*", "?", "[a-z]", "\\", "\\*",
    "hg:s", "hg:r", ":", "::", "a:b", "=", "#", "-", "%", "%3A", "💥", "é", "e\u0301", "\u202egnp",
    " ", "a" * 256, "a" * 257, "a" * 8_192, "__proto__", "..", "{" * 300, "}" * 300,
]  # fmt: skip

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
keys = text.filter(bool)
identities = st.tuples(text, st.none() | text, st.sampled_from(LIMITS), keys)
codecs = st.booleans()


def name_of(
    namespace: str, rule: str | None, limit: Limit, key: str, *, clustered: bool = False
) -> bytes:
    codec = KeyCodec(namespace, clustered)
    return codec.state(codec.state_prefix(limit, rule), key)


@given(identities, codecs)
def test_a_name_can_be_read_back(
    identity: tuple[str, str | None, Limit, str],
    clustered: bool,  # noqa: FBT001
) -> None:
    namespace, rule, limit, key = identity
    name = name_of(*identity, clustered=clustered)
    assert KeyCodec(namespace, clustered).parse(name) == (rule, limit.identity, key)


@given(identities, identities, codecs)
def test_different_states_have_different_names(
    one: tuple[str, str | None, Limit, str],
    other: tuple[str, str | None, Limit, str],
    clustered: bool,  # noqa: FBT001
) -> None:
    same = (*one[:2], one[2].identity, one[3]) == (*other[:2], other[2].identity, other[3])
    names = name_of(*one, clustered=clustered), name_of(*other, clustered=clustered)
    assert (names[0] == names[1]) == same


def test_parts_that_look_like_separators_do_not_run_together() -> None:
    parts = ["a", "b", ":", "%", "=", "-", "a:b", "{a}", "%3A", ""]
    names = [
        name_of(namespace, rule, limit, key)
        for namespace, rule, limit, key in itertools.product(
            parts, [None, *parts], LIMITS, filter(None, parts)
        )
    ]
    assert len(set(names)) == len(names)


def test_another_namespace_reads_no_name_of_ours() -> None:
    name = name_of("one", None, LIMITS[0], "key")
    assert KeyCodec("other").parse(name) is None
    assert KeyCodec("").parse(name) is None


def test_hashes_hide_the_key_and_depend_on_the_secret() -> None:
    one, other = KeyCodec(secret=b"one", hash_all=True), KeyCodec(secret=b"other", hash_all=True)
    assert b"alice" not in one.state(b"", "alice")
    assert one.state(b"", "alice") != other.state(b"", "alice")
    assert one.state(b"", "alice") != one.state(b"", "bob")


@pytest.mark.slow
@on_flavours("redis_cluster", "redis-7.0")
def test_slots_are_those_of_the_server(redis_cluster: Cluster) -> None:
    """Braces in every position."""
    names = [b"a", b"{a}b", b"{}a", b"{a", b"a}b{c}", b"{{a}}", b"a{b}{c}", bytes(range(256))]
    names += [name_of("n", None, LIMITS[0], key, clustered=True) for key in HOSTILE]
    assert [slot_of(name) for name in names] == [redis_cluster.slot(name) for name in names]


@pytest.mark.slow
@on_flavours("redis_cluster", "redis-7.0")
def test_everything_of_one_key_is_in_one_slot(redis_cluster: Cluster) -> None:
    """State, refunds, line and reservation, whatever the key looks like."""
    engine = RedisEngine(redis_cluster.url)
    bucket = TokenBucket(2, MINUTE_US)
    for key in HOSTILE:
        charges = (Charge(key, bucket), Charge(key, LIMITS[0]), Charge(key, LIMITS[2]))
        (held,) = engine.decide([ChargeSet(charges, reserve_us=MINUTE_US)])
        assert held, key
        (line,) = engine.decide([ChargeSet((Charge(key, bucket, 2),), wait_us=10 * MINUTE_US)])
        assert line, key
        engine.leave_line(line)
        assert held.token is not None
        assert engine.settle(held.token, 0), key
        assert engine.usage(key, LIMITS[0]).used == 0, key
    engine.close()


@pytest.mark.slow
def test_any_text_is_a_key(redis_server: RedisServer) -> None:
    engine = RedisEngine(redis_server.url)
    limit = FixedWindow(2, 250 * 86_400_000_000)
    hit = engine.bind(limit)
    assert [[hit(key, 1).remaining for _ in range(2)] for key in HOSTILE] == [[1, 0]] * len(HOSTILE)
    seen = []
    cursor = ""
    while True:
        entries, cursor = engine.list_keys("", cursor, 10)
        seen += [entry.key for entry in entries]
        if not cursor:
            break
    plain = [key for key in HOSTILE if len(key.encode()) <= 256]
    hashed = [KeyCodec().shown(key).decode() for key in HOSTILE if len(key.encode()) > 256]
    assert sorted(set(seen)) == sorted(plain + hashed)
    for key in HOSTILE:
        if len(key.encode()) <= 256:
            assert key in [entry.key for entry in engine.list_keys(key).entries]
    engine.close()


@on_flavours("redis_server", "redis-7.0")
def test_a_list_holds_only_keys_that_begin_with_the_prefix(redis_server: RedisServer) -> None:
    engine = RedisEngine(redis_server.url)
    hit = engine.bind(LIMITS[0])
    for key in ("gina", "a:b:=gina", "virgina", "g*", "gx"):
        hit(key, 1)
    assert sorted(entry.key for entry in engine.list_keys("g").entries) == ["g*", "gina", "gx"]
    assert [entry.key for entry in engine.list_keys("g*").entries] == ["g*"]
    engine.close()


@pytest.mark.parametrize(
    "key", ["", "a" * 8_193, "é" * 4_097, "a" * 1_000_000, "\ud800", b"a", 1, None]
)
@on_flavours("redis_server", "redis-7.0")
def test_an_invalid_key_is_refused_before_anything_is_sent(
    redis_server: RedisServer, key: object
) -> None:
    engine = RedisEngine(redis_server.url)
    with pytest.raises(UsageError):
        engine.bind(LIMITS[0])(key, 1)  # type: ignore[arg-type]
    engine.close()
    assert redis_server.call("DBSIZE") == 0


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
def test_no_key_ever_stays(redis_server: RedisServer, manual_clock: ManualClock) -> None:
    """After every paragraph of every story, each key in the store has an end."""
    for test_clock in (True, False):
        engine = RedisEngine(redis_server.url, clock=manual_clock if test_clock else None)
        for story in all_stories():
            for number in range(1, len(story.paragraphs) + 1):
                replay(type(story)(story.name, story.paragraphs[:number]), engine, manual_clock)
            for name in redis_server.call("KEYS", "*"):
                ends_in_ms = redis_server.call("PTTL", name)  # -1: never; 0 or -2: just now.
                assert ends_in_ms != -1, (story.name, name)
        assert redis_server.call("DBSIZE") > 0
        engine.close()
        redis_server.flush()


def test_a_reservation_is_named_by_its_own_namespace_in_any_batch() -> None:
    """A batch may hold requests of several namespaces, and is packed by the first one."""
    one, other = (
        Codec(KeyCodec(namespace, clustered=True), lambda: 0, test_clock=False)
        for namespace in ("one", "other")
    )
    request = ChargeSet((Charge("key", LIMITS[0]),), reserve_us=MINUTE_US, token="token")  # noqa: S106
    parts = [one.part(request), other.part(request)]
    *_, first_record, second_record = one.command((b"", b""), parts)
    tags = [KeyCodec(name, clustered=True).tag("key") for name in ("one", "other")]
    assert first_record == tags[0].join((b"hg:r", b"one:token"))
    assert second_record == tags[1].join((b"hg:r", b"other:token"))


@pytest.mark.parametrize("token", ["t", "a,b", "a@b", "a:b", "{a}", ","])
def test_a_record_is_found_under_any_token(token: str) -> None:
    for clustered in (False, True):
        codec = Codec(KeyCodec("n:1", clustered=clustered), lambda: 0, test_clock=False)
        request = ChargeSet((Charge("key", LIMITS[0]),), reserve_us=MINUTE_US, token=token)
        part = codec.part(request)
        full = codec.full_token(part)
        assert full is not None
        assert codec.records(full) == [(part.record, ())]
        if clustered:
            assert codec.records(f"{full},{full}") == [(part.record, ()), (part.record, ())]


def test_a_token_of_several_slots_says_which_charges_lie_where() -> None:
    codec = Codec(KeyCodec(clustered=True), lambda: 0, test_clock=False)
    charges = tuple(Charge(key, LIMITS[0]) for key in ("a", "b", "a"))
    groups = groups_of(ChargeSet(charges, reserve_us=MINUTE_US, token="name"), codec.keys.tag)  # noqa: S106
    parts = [codec.part(group, name=name) for group, name in groups]
    token = ",".join(codec.full_token(part) or "" for part in parts)
    assert codec.records(token) == [(parts[0].record, (0, 2)), (parts[1].record, (1,))]


def test_what_is_remembered_of_limits_and_rules_is_bounded() -> None:
    codec = Codec(KeyCodec("n"), lambda: 0, test_clock=False)
    for at in range(MAX_KNOWN + 100):
        limit = FixedWindow(at + 1, 60_000_000)
        codec.rule(limit)
        name = codec.state_name("key", limit, f"rule-{at}")
        assert name == Codec(codec.keys, lambda: 0, test_clock=False).state_name(
            "key", limit, f"rule-{at}"
        )
    assert 0 < len(codec._rules) <= MAX_KNOWN
    assert 0 < len(codec._prefixes) <= MAX_KNOWN
