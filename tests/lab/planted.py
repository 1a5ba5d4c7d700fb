"""Planted defects: each is a limiter with one mistake that was made somewhere, and a run that brings it out.

`PLANTED` has them by the number and the words of the list that the checker is held to. Each is called with a seed, and
with `clean=True` does the very same without the mistake: the checker must find the one, and must not find the other.
Numbers 17 and 18 are about regions that merge: `test_region_simulator.py` plants them.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from headgate import Concurrency, FixedWindow, SlidingLog, SlidingWindow, TokenBucket
from headgate.lab.history import Fault
from tests.lab.histories import EPOCH_US, START_US, Book, Call, Shape, calls_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate import Limit

SECOND_US = 1_000_000
BUSY: dict[str, Any] = {"callers": 6, "calls": 300, "pace_us": 3_000}
PLANTED: dict[str, Callable[..., Book]] = {}


def planted(words: str) -> Callable[[Callable[..., Book]], Callable[..., Book]]:
    """Put a defect into the list."""

    def put(make: Callable[..., Book]) -> Callable[..., Book]:
        PLANTED[words] = make
        return make

    return put


class Store:
    """An exact store, with a place to go wrong."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.states: dict[str, Any] = {}
        self.versions: dict[str, int] = {}

    def take(self, key: str, now_us: int, cost: int = 1) -> tuple[Any, int]:
        self.states[key], answer = self.limit.take(self.states.get(key), now_us, cost)
        return answer, self.number(key)

    def number(self, key: str) -> int:
        self.versions[key] = self.versions.get(key, 0) + 1
        return self.versions[key]


def record_answer(
    book: Book, call: Call, answer: Any, version: int, now_us: int, **more: Any
) -> None:
    book.note(call, "allow" if answer[0] else "deny", answer, ver=version, now_us=now_us, **more)


def plain(limit: Limit, seed: int, **shape: Any) -> tuple[Book, Store, list[Call]]:
    return Book(limit), Store(limit), calls_of(Shape(seed, **{**BUSY, **shape}))


@planted("1 GET-then-SET instead of one script")
def get_then_set(seed: int, *, clean: bool = False) -> Book:
    book, store, calls = plain(SlidingLog(10, 200_000), seed)
    if clean:
        return _all(book, store, calls)
    steps = [(call.t0, 0, call) for call in calls] + [(call.at, 1, call) for call in calls]
    read: dict[Call, tuple[Any, int]] = {}
    for at, kind, call in sorted(steps, key=lambda step: (step[0], step[1])):
        if kind == 0:
            read[call] = (store.states.get(call.key), store.versions.get(call.key, 0))
            continue
        state, version = read[call]
        after, answer = book.limit.take(state, at + EPOCH_US, call.cost)
        if answer[0]:
            store.states[call.key] = book.limit.decode(book.limit.encode(after))
        store.versions[call.key] = version + 1
        record_answer(book, call, answer, version + 1, at + EPOCH_US)
    return book


@planted("2 INCR and EXPIRE apart, killed between: an immortal key")
def immortal(seed: int, *, clean: bool = False) -> Book:
    book, store, calls = plain(FixedWindow(5, 20_000), seed)
    count, since = 0, 0
    for call in calls:
        now_us = call.at + EPOCH_US
        answer, version = store.take(call.key, now_us, call.cost)
        if not clean and call.at > START_US + 100_000:
            count, since = (count, since) if since else (0, now_us)
            count += 1
            answer = (count <= 5, max(0, 5 - count), 0 if count <= 5 else 1_000, 1_000, 0)
        record_answer(book, call, answer, version, now_us)
    return book


@planted("3 SET without PX drops the TTL")
def no_ttl(seed: int, *, clean: bool = False) -> Book:
    """A counter that lives as long as its window, and that a denial writes back without its end."""
    book = Book(FixedWindow(5, 50_000), receipts=False)
    count = 0
    ends: int | None = 0
    for call in calls_of(Shape(seed, **BUSY)):
        window = (call.at + EPOCH_US) // 50_000
        if ends is not None and window >= ends:
            count, ends = 0, window + 1
        allowed = count < 5
        count += allowed
        if not allowed and not clean:
            ends = None
        book.note(call, "allow" if allowed else "deny")
    return book


@planted("4 node clock instead of store clock")
def node_clock(seed: int, *, clean: bool = False) -> Book:
    book, store, calls = plain(SlidingLog(10, 200_000), seed)
    for call in calls:
        skew = 0 if clean else (call.proc % 3) * 150_000
        now_us = call.at + EPOCH_US + skew
        record_answer(book, call, *store.take(call.key, now_us, call.cost), now_us)
    return book


@planted("5 off by one: < for <=")
def off_by_one(seed: int, *, clean: bool = False) -> Book:
    book, store, calls = plain(TokenBucket(50, SECOND_US, 10), seed)
    store.limit = book.limit if clean else TokenBucket(50, SECOND_US, 11)
    return _all(book, store, calls)


@planted("5 off by one, to the caller's loss")
def one_too_few(seed: int, *, clean: bool = False) -> Book:
    book, store, calls = plain(SlidingLog(10, 200_000), seed)
    store.limit = book.limit if clean else SlidingLog(9, 200_000)
    return _all(book, store, calls)


@planted("6 floor in the sliding counter")
def floored(seed: int, *, clean: bool = False) -> Book:
    book, store, calls = plain(SlidingWindow(10, 100_000), seed)
    if clean:
        return _all(book, store, calls)
    start, previous, current = 0, 0, 0
    for call in calls:
        now_us = call.at + EPOCH_US
        begins = now_us - now_us % 100_000
        if begins != start:
            previous, current = (current if begins - start == 100_000 else 0), 0
            start = begins
        faded = previous * (100_000 - (now_us - begins)) // 100_000  # Rounded down.
        allowed = faded + current + call.cost <= 10
        current += call.cost if allowed else 0
        answer = (allowed, max(0, 10 - faded - current), None, None)
        record_answer(book, call, answer, store.number(call.key), now_us)
    return book


@planted("7 stored time via tostring: 14 digits")
def fourteen_digits(seed: int, *, clean: bool = False) -> Book:
    book, store, calls = plain(TokenBucket(50, SECOND_US, 10), seed)
    for call in calls:
        now_us = call.at + EPOCH_US
        answer, version = store.take(call.key, now_us, call.cost)
        if not clean:
            kept: Any = book.limit.encode(store.states[call.key])
            stamp, backlog = kept
            store.states[call.key] = book.limit.decode((int(float(f"{stamp:.14g}")), backlog))
        record_answer(book, call, answer, version, now_us)
    return book


@planted("8 a NaN limit compares false, and lets everything pass")
def not_a_number(seed: int, *, clean: bool = False) -> Book:
    book, _, calls = plain(FixedWindow(10, 100_000), seed)
    book.receipts = False
    limit = 10.0 if clean else float("nan")
    counts: dict[int, int] = {}
    for call in calls:
        window = (call.at + EPOCH_US) // 100_000
        denied = counts.get(window, 0) + call.cost > limit
        counts[window] = counts.get(window, 0) + (0 if denied else call.cost)
        book.note(call, "deny" if denied else "allow")
    return book


@planted("9 a retry after a time-out counts twice")
def retried(seed: int, *, clean: bool = False) -> Book:
    book, store, calls = plain(SlidingLog(10, 100_000), seed)
    rng = random.Random(seed)
    for call in calls:
        now_us = call.at + EPOCH_US
        lost = rng.random() < 0.1
        answer, version = store.take(call.key, now_us, call.cost)
        if lost and clean:
            book.note(call, "info")
            continue
        if lost:
            answer, version = store.take(call.key, now_us, call.cost)
        record_answer(book, call, answer, version, now_us)
    return book


def _leases(seed: int, flaw: str) -> Book:
    """Two nodes that take chunks of 5 for 100 ms each, and spend them."""
    book = Book(FixedWindow(1_000, 60 * SECOND_US), receipts=False, mode="leased")
    book.parameters = {"nodes": 2, "chunk": 5, "lease_us": 100_000}
    rng = random.Random(seed)
    for node in ("a", "b"):
        at = START_US + rng.randrange(1_000)
        for number in range(20):
            t0, t1 = at, at + rng.randrange(1_000, 20_000)
            deadline = (t1 if flaw == "from the reply" else t0) + 100_000
            grant = Call(t0, t0, t1, 5, 0, f="lease")
            name = f"{node}{number}"
            book.note(grant, "allow", lease_id=name, deadline_us=deadline, node=node)
            at = t1
            for spent in range(5):
                at += rng.randrange(1, 10_000)
                if flaw in ("wall clock", "not checked") and spent == 4 and number % 5 == 4:
                    at = deadline + 50_000  # It was stopped, or its clock was set back.
                elif at > deadline:
                    break
                use = Call(at, at, at + 10, 1, 0)
                whose = node
                if flaw == "no fence" and number % 7 == 6 and spent == 3:
                    whose = "b" if node == "a" else "a"
                book.note(use, "allow", source="lease", lease_id=name, node=whose)
                if flaw == "overspent" and spent == 4 and number == 3:
                    book.note(use, "allow", source="lease", lease_id=name, node=node)
                at += 10
    return book


@planted("10 lease deadline counted from the reply")
def lease_from_reply(seed: int, *, clean: bool = False) -> Book:
    return _leases(seed, "" if clean else "from the reply")


@planted("11 wall clock for the lease deadline")
def lease_by_wall_clock(seed: int, *, clean: bool = False) -> Book:
    return _leases(seed, "" if clean else "wall clock")


@planted("12 lease not checked again after a pause")
def lease_not_checked(seed: int, *, clean: bool = False) -> Book:
    return _leases(seed, "" if clean else "not checked")


@planted("13 no fencing epoch")
def no_fence(seed: int, *, clean: bool = False) -> Book:
    return _leases(seed, "" if clean else "no fence")


@planted("a chunk that is overspent")
def overspent(seed: int, *, clean: bool = False) -> Book:
    return _leases(seed, "" if clean else "overspent")


@planted("14 to release twice frees two slots")
def released_twice(seed: int, *, clean: bool = False) -> Book:
    book = Book(Concurrency(3, 60 * SECOND_US), receipts=False)
    rng = random.Random(seed)
    holding: list[Call] = []
    free, at = 3, START_US
    for number in range(80):
        at += 100
        call = Call(at, at, at + 10, 1, 0, f="acquire", token=f"{number}")
        allowed = free > 0
        book.note(call, "allow" if allowed else "deny")
        if allowed:
            free -= 1
            holding.append(call)
        if holding and (not allowed or rng.random() < 0.3):
            gone = holding.pop(rng.randrange(len(holding)))
            at += 100
            for again in range(2):
                book.note(gone._replace(t0=at, t1=at + 10, f="release"), "allow")
                at += 20
                free += 1 if again == 0 or not clean else 0
    return book


def _outage(seed: int, flaw: str) -> Book:
    """Three nodes on one store that goes away for a second and comes back; each has a share of 4 of 12."""
    limit = FixedWindow(12, 10 * SECOND_US)
    book, store = Book(limit), Store(limit)
    book.parameters = {"nodes": 3, "on_error": "fallback"}
    begin, heal = START_US + SECOND_US, START_US + 2 * SECOND_US
    book.faults.append(Fault("store_down", begin, heal, heal, name="F1"))
    rng = random.Random(seed)
    spent: dict[int, int] = {0: 0, 1: 0, 2: 0}
    share = 6 if flaw == "live nodes" else 4
    at = START_US
    merged = False
    ends = START_US + 6 * SECOND_US
    while at < ends:
        at += rng.randrange(5_000, 40_000)
        node = rng.randrange(3)
        call = Call(at + 5, at, at + 10, 1, node)
        now_us = call.at + EPOCH_US
        away = begin <= at < (ends if flaw == "for good" else heal + 500_000)
        if away:
            fits = spent[node] < share
            spent[node] += fits
            book.note(call, "allow" if fits else "deny", source="fallback", node=str(node))
            continue
        if at > heal and not merged:
            merged = True
            owed = sum(spent.values())
            if flaw != "thrown away" and owed:
                force = Call(at, at - 4, at + 1, owed, 9, f="force")
                store.states["key"], answer = limit.force(
                    store.states.get("key"), at + EPOCH_US, owed
                )
                record_answer(book, force, answer, store.number("key"), at + EPOCH_US)
        answer, version = store.take("key", now_us)
        record_answer(book, call, answer, version, now_us, node=str(node))
    asked = Call(at + 100, at + 100, at + 110, 0, 9, f="ledger")
    used = limit.used(store.states.get("key"), at + 105 + EPOCH_US)
    book.note(asked, "allow", used=used)
    return book


@planted("15 fallback by the live number of nodes")
def live_nodes(seed: int, *, clean: bool = False) -> Book:
    return _outage(seed, "" if clean else "live nodes")


@planted("16 fallback counts thrown away on return")
def thrown_away(seed: int, *, clean: bool = False) -> Book:
    book = _outage(seed, "" if clean else "thrown away")
    book.receipts = False
    for place, one in enumerate(book.operations):
        book.operations[place] = one._replace(ver=None, now_us=None)
    return book


@planted("19 read from a replica")
def replica(seed: int, *, clean: bool = False) -> Book:
    book, store, calls = plain(SlidingLog(10, 200_000), seed)
    copies: list[tuple[int, Any, int]] = []
    for call in calls:
        now_us = call.at + EPOCH_US
        state, version = store.states.get(call.key), store.versions.get(call.key, 0)
        if not clean and call.proc % 2:  # What the replica had five milliseconds ago.
            old = [one for one in copies if one[0] <= call.at - 5_000]
            state, version = (old[-1][1], old[-1][2]) if old else (None, 0)
        after, answer = book.limit.take(state, now_us, call.cost)
        store.states[call.key] = book.limit.decode(book.limit.encode(after)) if after else after
        store.versions[call.key] = version + 1
        copies.append((call.at, store.states[call.key], version + 1))
        record_answer(book, call, answer, version + 1, now_us)
    return book


@planted("20 a READONLY connection is kept in the pool")
def kept_connection(seed: int, *, clean: bool = False) -> Book:
    book = _outage(seed, "" if clean else "for good")
    book.faults[0] = book.faults[0]._replace(fault="failover", name="F12")
    book.engine, book.mode = "redis", "exact"
    return book


@planted("21 a breaker that never half-opens")
def never_half_open(seed: int, *, clean: bool = False) -> Book:
    return _outage(seed, "" if clean else "for good")


@planted("22 a deny cache that outlives a reset")
def stale_cache(seed: int, *, clean: bool = False) -> Book:
    book, store, calls = plain(FixedWindow(5, 60 * SECOND_US), seed, pace_us=200_000)
    was_reset = denied_until = 0
    for call in calls:
        now_us = call.at + EPOCH_US
        if not was_reset and call.at > START_US + 5 * SECOND_US:
            was_reset = call.at
            store.states.clear()
            book.note(call._replace(f="reset", t0=call.at, t1=call.at), "allow")
            continue
        if was_reset and not call.proc % 2:
            continue  # Only those whose node has a cache go on.
        cached = call.at < denied_until and (
            not clean or not was_reset or call.at < was_reset + 900_000
        )
        if cached and call.proc % 2:
            book.note(call, "deny", source="cache")
            continue
        answer, version = store.take(call.key, now_us, call.cost)
        if not answer[0]:
            denied_until = call.at + answer[2]
        record_answer(book, call, answer, version, now_us)
    return book


@planted("23 several rules, of which some were charged")
def partly_charged(seed: int, *, clean: bool = False) -> Book:
    wide, narrow = SlidingLog(30, 300_000), SlidingLog(5, 100_000)
    book = Book(wide, limits={"wide": wide, "narrow": narrow})
    stores = {"wide": Store(wide), "narrow": Store(narrow)}
    for number, call in enumerate(calls_of(Shape(seed, **BUSY))):
        now_us = call.at + EPOCH_US
        before = {rule: store.states.get("key 0") for rule, store in stores.items()}
        own = {rule: store.limit.peek(before[rule], now_us, 1)[0] for rule, store in stores.items()}
        passes = all(own.values())
        for rule, store in stores.items():
            if passes or (not clean and own[rule]):
                store.states["key 0"], answer = store.limit.take(before[rule], now_us, 1)
                if not passes:
                    answer = store.limit.peek(before[rule], now_us, 1)
            else:
                answer = store.limit.peek(before[rule], now_us, 1)
            charge = call._replace(rule=rule, key="key 0")
            book.note(
                charge, "allow" if passes else "deny", answer, ver=store.number("key 0"),
                now_us=now_us, own=own[rule], id=number,
            )  # fmt: skip
    return book


@planted("24 keys that are joined without escaping")
def joined(seed: int, *, clean: bool = False) -> Book:
    book, store, calls = plain(SlidingLog(10, 200_000), seed, keys=2)
    names = {"key 0": ("a_b", "c"), "key 1": ("a", "b_c")}
    for call in calls:
        name = names[call.key]
        stored = repr(name) if clean else "_".join(name)
        now_us = call.at + EPOCH_US
        record_answer(book, call._replace(key=repr(name)), *store.take(stored, now_us), now_us)
    return book


@planted("25 braces of a user in the hash tag: CROSSSLOT, and everything passes")
def cross_slot(seed: int, *, clean: bool = False) -> Book:
    book, store, calls = plain(SlidingLog(10, 200_000), seed, keys=4)
    book.parameters = {"on_error": "open"}
    for call in calls:
        now_us = call.at + EPOCH_US
        if not clean and call.key == "key 3":
            book.note(call, "allow", source="open")
        else:
            record_answer(book, call, *store.take(call.key, now_us), now_us)
    return book


@planted("26 unknown counted as denied")
def unknown_as_denied(seed: int, *, clean: bool = False) -> Book:
    book, store, calls = plain(SlidingLog(10, 200_000), seed, lost=0.1)
    for call in calls:
        now_us = call.at + EPOCH_US
        found = store.take(call.key, now_us, call.cost) if call.done else None
        if call.lost:
            book.note(call, "info" if clean else "deny", source="engine" if clean else "closed")
        else:
            assert found is not None
            record_answer(book, call, *found, now_us)
    if not clean:
        book.faults.append(Fault("store_slow", START_US, START_US + 60 * SECOND_US))
    return book


@planted("27 a negative cost refunds")
def negative(seed: int, *, clean: bool = False) -> Book:
    book = Book(FixedWindow(10, SECOND_US), receipts=False)
    count, window = 0, 0
    for number, call in enumerate(calls_of(Shape(seed, **BUSY))):
        now = (call.at + EPOCH_US) // SECOND_US
        count, window = (count, window) if now == window else (0, now)
        cost = -3 if number % 9 == 8 and not clean else 1
        allowed = count + cost <= 10
        count += cost if allowed else 0
        book.note(call._replace(cost=cost), "allow" if allowed else "deny")
    return book


@planted("28 a key over its limit is evicted")
def evicted(seed: int, *, clean: bool = False) -> Book:
    book, store, calls = plain(SlidingLog(10, 500_000), seed)
    for number, call in enumerate(calls):
        if not clean and number == 150:
            store.states.clear()
            store.versions.clear()
        now_us = call.at + EPOCH_US
        record_answer(book, call, *store.take(call.key, now_us), now_us)
    return book


def _rules(seed: int, flaw: str) -> Book:
    """Two nodes that learn of revisions 2 and 3 of a rule, one after the other."""
    limits = {
        1: FixedWindow(10, SECOND_US),
        2: FixedWindow(20, SECOND_US),
        3: FixedWindow(5, SECOND_US),
    }
    book, store = Book(limits[1]), Store(limits[1])
    known = {0: 1, 1: 1}
    puts = {2: START_US + 100_000, 3: START_US + 300_000}
    acknowledged: set[tuple[int, int]] = set()
    for call in calls_of(Shape(seed, **{**BUSY, "pace_us": 30_000})):
        node = call.proc % 2
        for revision, at in puts.items():
            misses = flaw == "compacted" and node == 1 and revision == 3
            if call.at > at + node * 5_000 and (node, revision) not in acknowledged:
                acknowledged.add((node, revision))
                put = call._replace(f="put_rule", t0=call.at, t1=call.at, key="")
                where = f"n{node}" if flaw != "compacted" or not misses else None
                book.note(put, "allow", node=where, rule_rev=revision, limit=limits[revision])
                if not misses:
                    known[node] = revision
        if flaw == "rolled back" and node == 0 and call.at > START_US + 400_000:
            known[node] = 2
        store.limit = limits[known[node]]
        now_us = call.at + EPOCH_US
        answer, version = store.take(call.key, now_us)
        record_answer(book, call, answer, version, now_us, node=f"n{node}", rule_rev=known[node])
    return book


@planted("29 a rule rolled back to an older revision")
def rolled_back(seed: int, *, clean: bool = False) -> Book:
    return _rules(seed, "" if clean else "rolled back")


@planted("30 a stale rule after the watch was compacted")
def compacted(seed: int, *, clean: bool = False) -> Book:
    return _rules(seed, "" if clean else "compacted")


@planted("a clock read outside the lock")
def read_outside(seed: int, *, clean: bool = False) -> Book:
    """Who reads the time first may be served second."""
    book, store, calls = plain(SlidingLog(10, 200_000), seed)
    for call in calls:
        now_us = (call.at if clean else call.t0) + EPOCH_US
        record_answer(book, call, *store.take(call.key, now_us), now_us)
    return book


@planted("a state pulled back over the end of a window")
def pulled_back(seed: int, *, clean: bool = False) -> Book:
    """The store's clock goes to and fro by 40 ms around the end of a window; a flip must give nothing twice."""
    limit = FixedWindow(10, 100_000)
    book = Book(limit, receipts=False)
    begin, heal = START_US, START_US + 400_000
    book.faults.append(Fault("clock_step", begin, heal, heal, step_us=40_000))
    rng = random.Random(seed)
    count, start, latest = 0, 0, 0
    for number in range(400):
        at = START_US + number * 200 + rng.randrange(100)
        now_us = at + EPOCH_US + (40_000 if number // 20 % 2 else 0)
        if clean:  # For one key, time never runs backwards.
            now_us = latest = max(latest, now_us)
        if now_us // 100_000 != start:
            count, start = 0, now_us // 100_000
        allowed = count < 10
        count += allowed
        book.note(Call(at, at - 20, at + 20, 1, 0), "allow" if allowed else "deny")
    return book


def _all(book: Book, store: Store, calls: list[Call]) -> Book:
    for call in calls:
        now_us = call.at + EPOCH_US
        record_answer(book, call, *store.take(call.key, now_us, call.cost), now_us)
    return book
