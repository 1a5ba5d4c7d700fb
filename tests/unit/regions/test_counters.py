"""Counters that merge: whatever becomes of messages, regions end up with the same totals, and charge each unit once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from headgate import (
    Calendar,
    CalendarWindow,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
    UsageError,
)
from headgate.regions.counters import (
    SLICES,
    Actor,
    Charged,
    CounterName,
    CounterTotal,
    Growth,
    OwnCounts,
    Replica,
    charges,
    foreign,
    forget_at_us,
    is_early,
    slice_length_us,
    slice_of,
)
from headgate.regions.messages import (
    COUNTERS,
    Message,
    Reply,
    counters_content,
    read_counters,
)
from headgate.regions.store import MemoryRegionStore
from headgate.testing import ManualClock

if TYPE_CHECKING:
    from headgate import Limit

SECOND_US = 1_000_000
START_US = 1_700_000_040 * SECOND_US
"""On a minute."""
MINUTE = FixedWindow(10, 60 * SECOND_US)
EU, US = Actor("eu", "1", "a"), Actor("us", "1", "b")


def name(limit: Limit = MINUTE, at_us: int = START_US, key: str = "k") -> CounterName:
    """A counter of a limit that regions merge."""
    merged = limit.across_regions("merge")
    return CounterName("rule", key, merged, slice_of(merged, at_us))


def charged(limit: Limit, taken: dict[int, int], now_us: int) -> int:
    """What is charged for units that were admitted elsewhere so many seconds after the start."""
    grown = [Growth(name(limit, START_US + s * SECOND_US), US, n) for s, n in taken.items()]
    return sum(charges(grown, now_us).values())


@settings(max_examples=200)
@given(st.data())
def test_replicas_agree_and_charge_each_unit_once_however_messages_travel(
    data: st.DataObject,
) -> None:
    """Three regions count; messages are lost, doubled and reordered; at the end each tells each other everything."""
    replicas = {actor: Replica() for actor in (EU, US, Actor("asia", "1", "c"))}
    own = {actor: OwnCounts() for actor in replicas}
    admitted = dict.fromkeys(replicas, 0)
    taken_in = {(one, of): 0 for one in replicas for of in replicas}
    messages: list[tuple[Actor, list[CounterTotal]]] = []

    def receive(here: Actor, entries: list[CounterTotal]) -> None:
        for growth in replicas[here].merge(entries, START_US):
            taken_in[here, growth.actor] += growth.units

    for _ in range(data.draw(st.integers(1, 20))):
        actor = data.draw(st.sampled_from(list(replicas)))
        units = data.draw(st.integers(1, 5))
        admitted[actor] += units
        at_us = START_US - data.draw(st.integers(0, 50)) * SECOND_US
        names = own[actor].add([(name(at_us=at_us), units)])
        entries = own[actor].entries(names, actor)
        receive(actor, entries)
        messages += [(to, entries) for to in replicas if to != actor]
        for _ in range(data.draw(st.integers(0, 4))):
            place = data.draw(st.integers(0, len(messages) - 1))
            receive(*messages[place])  # Any message, at any time, any number of times.
    for here in replicas:
        for there in list(replicas.values()):
            receive(here, list(there.entries()))
    known = [sorted(replica.entries()) for replica in replicas.values()]
    assert known[0] == known[1] == known[2]
    for (_, actor), units in taken_in.items():
        assert units == admitted[actor]


@pytest.mark.parametrize(
    "limit, taken, after_s, units",
    [
        (MINUTE, {0: 3, 59: 4}, 59, 7),
        (MINUTE, {0: 3, 59: 4}, 60, 0),  # An old window is never charged to a new one.
        (SlidingWindow(10, 60 * SECOND_US), {0: 8, 30: 2}, 59, 10),
        (SlidingWindow(10, 60 * SECOND_US), {0: 8, 30: 2}, 90, 5),
        (SlidingWindow(10, 60 * SECOND_US), {0: 9}, 119, 1),
        (SlidingWindow(10, 60 * SECOND_US), {0: 9}, 120, 0),
        (SlidingLog(10, 60 * SECOND_US), {0: 4, 30: 5}, 60, 9),
        (SlidingLog(10, 60 * SECOND_US), {0: 4, 30: 5}, 66, 5),
        (SlidingLog(10, 60 * SECOND_US), {0: 4, 30: 5}, 96, 0),
        (TokenBucket(60, 60 * SECOND_US, 30), {0: 20}, 0, 20),
        (
            TokenBucket(60, 60 * SECOND_US, 30),
            {0: 20},
            16,
            10,
        ),  # A slice is believed to be its end.
        (TokenBucket(60, 60 * SECOND_US, 30), {0: 20, 6: 20}, 12, 30),
        (TokenBucket(60, 60 * SECOND_US, 30), {0: 500}, 6, 30),
        (TokenBucket(60, 60 * SECOND_US, 30), {0: 20}, 26, 0),
        (CalendarWindow(10, Calendar("day")), {0: 3}, 3_600, 3),
        (CalendarWindow(10, Calendar("day")), {0: 3}, 86_400, 0),
    ],
)
def test_late_growth_is_charged_as_far_as_it_still_counts(
    limit: Limit, taken: dict[int, int], after_s: int, units: int
) -> None:
    assert charged(limit, taken, START_US + after_s * SECOND_US) == units


def test_units_of_a_log_are_charged_as_of_the_ends_of_their_slices() -> None:
    """In one charge for each slice, whoever admitted them."""
    limit = SlidingLog(10, 60 * SECOND_US).across_regions("merge")
    names = {s: name(limit, START_US + s * SECOND_US) for s in (0, 5, 30, 66)}
    grown = [Growth(one, US, 2) for one in names.values()]
    grown.append(Growth(names[30], EU, 1))
    assert charges(grown, START_US + 66 * SECOND_US) == {
        Charged("rule", "k", limit, START_US + 36 * SECOND_US): 3,
        Charged("rule", "k", limit, START_US + 72 * SECOND_US): 2,
    }


@given(
    st.integers(1_000, 10**9),
    st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(0, 5), st.none() | st.integers(0, 2 * 10**9))
    ),
)
def test_a_log_of_units_that_are_late_counts_each_for_one_window(
    window_us: int, steps: list[tuple[int, int, int | None]]
) -> None:
    """Against a plain list of units and times; those without a time are taken here, now."""
    limit = SlidingLog(10, window_us)
    state, now_us, came = None, START_US, list[tuple[int, int]]()
    for move_us, cost, ago_us in steps:
        now_us += move_us
        if ago_us is None:
            state, answer = limit.take(state, now_us, cost)
            came += [(now_us, cost)] if answer[0] else []
        else:
            before = state
            told = limit.encode(before) if before else None
            state, answer = limit.force_past(before, now_us, cost, now_us - ago_us)
            came.append((now_us - ago_us, cost))
            assert (limit.encode(before) if before else None) == told  # It is a value.
        inside = [(at_us, units) for at_us, units in came if at_us > now_us - window_us]
        used = sum(units for _, units in inside)
        assert limit.used(state, now_us) == used
        last_us = max([at_us for at_us, units in inside if units], default=0)
        assert answer[3] == (last_us + window_us - now_us if used else 0)
        if state is not None:
            assert limit.decode(limit.encode(state))[3] >= used


@given(
    st.integers(1, 1_000),
    st.integers(1_000, 10**9),
    st.lists(st.tuples(st.integers(0, 3 * 10**9), st.integers(1, 1_000)), max_size=30),
)
def test_a_bucket_is_charged_at_least_what_its_units_have_left_and_at_most_a_burst(
    number: int, window_us: int, taken: list[tuple[int, int]]
) -> None:
    """Against the same units, one by one, in a bucket that drains in fractions."""
    limit = TokenBucket(number, window_us, 1_000)
    now_us = START_US + 3 * 10**9
    grown = [Growth(name(limit, START_US + at_us), US, units) for at_us, units in taken]
    level, before_us = 0.0, 0
    for at_us, units in sorted(taken):
        level = max(0.0, level - (at_us - before_us) * number / window_us) + units
        before_us = at_us
    level = max(0.0, level - (3 * 10**9 - before_us) * number / window_us)
    found = sum(charges(grown, now_us).values())
    assert min(level, 1_000) - 1e-6 <= found <= 1_000


@given(st.integers(1_000, 10**12), st.integers(0, 10**16))
def test_a_slice_lies_in_one_window_and_there_are_few_of_them(window_us: int, now_us: int) -> None:
    limit = FixedWindow(1, window_us)
    start_us, end_us = limit.bounds_us(now_us)
    slice_us = slice_of(limit, now_us)
    assert start_us <= slice_us <= now_us < min(slice_us + slice_length_us(limit), end_us)
    assert (end_us - start_us) / slice_length_us(limit) <= SLICES


def test_expired_counters_are_dropped_and_not_accepted_again() -> None:
    replica, counter = Replica(), name()
    assert [one.units for one in replica.merge([CounterTotal(counter, US, 5)], START_US)] == [5]
    over_us = forget_at_us(counter)
    replica.forget(over_us - 1)
    assert len(replica) == 1
    replica.forget(over_us)
    assert len(replica) == 0
    assert replica.merge([CounterTotal(counter, US, 5)], over_us) == []
    assert charges([Growth(counter, US, 5)], over_us) == {}


def test_changes_come_in_order_and_the_last_total_of_each_counter_once() -> None:
    replica = Replica()
    first, second = name(key="1"), name(key="2")
    for counter, total in ((first, 1), (second, 1), (first, 2)):
        replica.merge([CounterTotal(counter, US, total)], START_US)
    assert replica.changes(0, 10) == ([CounterTotal(second, US, 1), CounterTotal(first, US, 2)], 3)
    assert replica.changes(0, 1) == ([CounterTotal(second, US, 1)], 2)
    assert replica.changes(2, 10) == ([CounterTotal(first, US, 2)], 3)
    assert replica.changes(3, 10) == ([], 3)


def test_a_region_charges_its_own_counters_only_if_its_store_has_lost_them() -> None:
    grown = [Growth(name(), actor, 1) for actor in (EU, EU._replace(epoch="0"), US)]
    assert [one.actor for one in foreign(grown, "eu", "1")] == [EU._replace(epoch="0"), US]


def test_another_epoch_of_a_store_has_separate_counters() -> None:
    """A restarted actor that went on under its old name would be hidden behind its old total."""
    replica = Replica()
    replica.merge([CounterTotal(name(), US, 9)], START_US)
    grown = replica.merge([CounterTotal(name(), US._replace(epoch="2"), 1)], START_US)
    assert [one.units for one in grown] == [1]


def test_own_counts_forget_slices_that_are_over() -> None:
    own = OwnCounts()
    own.add([(name(), 2), (name(at_us=START_US + 30 * SECOND_US), 1)])
    own.forget(START_US + 20 * SECOND_US)
    assert [one.slice_us for one in own.names()] == [START_US + 30 * SECOND_US]
    assert is_early(own.names()[0], START_US)


def test_own_counts_of_all_epochs_are_sent_to_a_new_store() -> None:
    """It may be lost again before another region has heard of them."""
    own, again = OwnCounts(), EU._replace(epoch="2")
    own.add([(name(), 2)])
    assert own.retire(EU) == [CounterTotal(name(), EU, 2)]
    own.add([(name(), 3)])
    assert own.retire(again) == [CounterTotal(name(), EU, 2), CounterTotal(name(), again, 3)]
    own.forget(START_US + 20 * SECOND_US)
    assert own.retire(EU) == []


def test_a_memory_that_is_full_forgets_what_changed_longest_ago() -> None:
    replica = Replica(max_counters=2)
    for key in "123":
        replica.merge([CounterTotal(name(key=key), US, 1)], START_US)
    assert [one.name.key for one in replica.entries()] == ["2", "3"]
    assert replica.changes(0, 10)[1] == 3


def test_messages_survive_packing_and_unpacking() -> None:
    limits = [MINUTE, SlidingWindow(5, 1_000), SlidingLog(5, 1_000), TokenBucket(5, 1_000, 7)]
    limits.append(CalendarWindow(5, Calendar("month", "Europe/Berlin", 3)))
    entries = [
        CounterTotal(name(limit, key="ключ \n"), actor, 3) for limit in limits for actor in (EU, US)
    ]
    message = Message(COUNTERS, "eu", "1", counters_content(entries))
    read = Message.unpack(message.pack())
    assert read[:3] == message[:3]
    assert sorted(read_counters(read.content), key=repr) == sorted(entries, key=repr)
    assert Reply.of(Reply("e", 2).values()) == Reply("e", 2)


@pytest.mark.parametrize(
    "packed",
    [
        *(b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'[2,"counters","eu","1",[]]'),
        b'[1,"counters",5,"1",[]]',
    ],
)
def test_an_invalid_message_is_refused(packed: bytes) -> None:
    with pytest.raises(UsageError):
        Message.unpack(packed)


@pytest.mark.parametrize(
    "content",
    [
        *(5, [5], [["eu", "1", "a"]], [["eu", "1", "a", [5]]], [["eu", "1", 5, []]]),
        [["eu", "1", "a", [["r", "k", ["merge", "fixed_window", 5, 1_000], 0, -1]]]],
        [["eu", "1", "a", [["r", "k", ["merge", "fixed_window", 5, 1_000], 0.5, 1]]]],
        [["eu", "1", "a", [["r", "", ["merge", "fixed_window", 5, 1_000], 0, 1]]]],
        [["eu", "1", "a", [["r", "k", ["merge", "nothing", 5, 1_000], 0, 1]]]],
        [["eu", "1", "a", [["r", "k", ["exact", "fixed_window", 5, 1_000], 0, 1]]]],
        [["eu", "1", "a", [["r", "k", ["merge", "concurrency", 5], 0, 1]]]],
        [["eu", "1", "a", [["r", "k", ["merge", "fixed_window", []], 0, 1]]]],
    ],
)
def test_invalid_counters_are_refused(content: object) -> None:
    with pytest.raises(UsageError):
        read_counters(content)


def test_a_store_in_memory_has_one_shipper_for_each_region_until_it_is_silent() -> None:
    async def main() -> None:
        clock = ManualClock()
        store = MemoryRegionStore(clock)
        assert await store.lead("us", "a", SECOND_US)
        assert not await store.lead("us", "b", SECOND_US)
        assert await store.lead("asia", "b", SECOND_US)
        clock.advance(0.5)
        assert await store.lead("us", "a", SECOND_US)
        clock.advance(0.9)
        assert not await store.lead("us", "b", SECOND_US)
        clock.advance(0.1)
        assert await store.lead("us", "b", SECOND_US)
        assert (await store.merge([], "us")).state.links["us"].shipper == "b"

    asyncio.run(main())
