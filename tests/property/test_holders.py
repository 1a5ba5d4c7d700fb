"""Slots are counted as by a plain dict that is gone through every time, whatever their TTLs and their number."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import process_time_ns
from typing import TYPE_CHECKING

from hypothesis import given, strategies as st

from headgate.algorithms import NEVER, Concurrency
from headgate.algorithms.base import later

if TYPE_CHECKING:
    from headgate.algorithms import Answer
    from headgate.algorithms._holders import Holders

SECOND_US = 1_000_000
START_US = 10_000 * SECOND_US


@dataclass
class Plain:
    """Who holds `(since_us, ttl_us, cost)`, and the latest hold or renewal."""

    held: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    newest: tuple[int, int] = (0, 0)

    def at(self, now_us: int) -> int:
        """The moment to go on from."""
        newest_us, ttl_us = self.newest
        if newest_us > now_us + ttl_us:
            self.newest = (now_us, ttl_us)
            alive = {one: its for one, its in self.held.items() if its[0] + its[1] > now_us}
            self.held = {one: (min(its[0], now_us), *its[1:]) for one, its in alive.items()}
        return max(now_us, self.newest[0])

    def alive(self, at_us: int) -> dict[str, tuple[int, int, int]]:
        """Who has not expired."""
        return {one: its for one, its in self.held.items() if its[0] + its[1] > at_us}

    def hold(self, limit: Concurrency, now_us: int, cost: int, token: str) -> Answer:
        """As `Concurrency.hold`."""
        at_us = self.at(now_us)
        held = self.alive(at_us)
        others = {one: its for one, its in held.items() if one != token}
        over = sum(its[2] for its in others.values()) + cost - limit.limit
        if over <= 0 and cost:
            self.held = held = {**others, token: (at_us, limit.ttl_us, cost)}
            self.newest = max(self.newest, (at_us, limit.ttl_us))
        retry_us = 0 if over <= 0 else NEVER
        if over > 0 and cost <= limit.limit:
            for ends_us, freed in sorted((its[0] + its[1], its[2]) for its in others.values()):
                over -= freed
                retry_us = ends_us - at_us
                if over <= 0:
                    break
        remaining = max(0, limit.limit - sum(its[2] for its in held.values()))
        reset_us = max([0, *(its[0] + its[1] - at_us for its in held.values())])
        return later((retry_us == 0, remaining, retry_us, reset_us, 0), at_us - now_us)

    def release(self, now_us: int, token: str) -> None:
        """As `Concurrency.release`."""
        if token in self.held:
            self.held = self.alive(self.at(now_us))
            self.held.pop(token, None)

    def renew(self, limit: Concurrency, now_us: int, token: str) -> bool:
        """As `Concurrency.renew`."""
        at_us = self.at(now_us)
        held = self.alive(at_us)
        if token not in held:
            return False
        self.held = {**held, token: (at_us, limit.ttl_us, held[token][2])}
        self.newest = max(self.newest, (at_us, limit.ttl_us))
        return True


tokens = st.integers(0, 90).map(str)
spans_us = st.sampled_from(
    [0, 0, 0, 1, 300_000, SECOND_US, 4 * SECOND_US, -1, -SECOND_US, -9 * SECOND_US]
)
limits = st.builds(
    Concurrency, st.sampled_from([2, 40, 200]), st.sampled_from([SECOND_US, 3 * SECOND_US])
)
steps = st.tuples(
    st.sampled_from(["hold", "hold", "hold", "renew", "release"]),
    spans_us,
    tokens,
    st.integers(0, 3),
    limits,
)


@given(before=st.integers(0, 90), story=st.lists(steps, max_size=60))
def test_slots_are_those_of_a_dict(
    before: int, story: list[tuple[str, int, str, int, Concurrency]]
) -> None:
    """Holds, renewals and releases at times that also step back, by limits that differ."""
    plain, now_us = Plain(), START_US
    state: Holders | None = None
    begun = [
        ("hold", 10, str(number), 1, Concurrency(200, 2 * SECOND_US)) for number in range(before)
    ]
    for what, span_us, token, cost, limit in [*begun, *story]:
        now_us += span_us
        kept = None if state is None else limit.encode(state)
        was = state
        if what == "hold":
            state, answer = limit.hold(state, now_us, cost, token)
            assert answer == plain.hold(limit, now_us, cost, token)
        elif what == "renew":
            state, held = limit.renew(state, now_us, token)
            assert held == plain.renew(limit, now_us, token)
        else:
            state = limit.release(state, now_us, token)
            plain.release(now_us, token)
        assert was is None or limit.encode(was) == kept, "a state was changed"
        if state is not None:
            at_us = limit.seen(state, now_us)[1]
            assert limit.used(state, now_us) == sum(its[2] for its in plain.alive(at_us).values())


def test_a_slot_that_is_let_go_does_not_take_the_time_of_its_key_along() -> None:
    """Else every flip of the clock by a whole time to live would expire a slot whose holder is still at work."""
    limit = Concurrency(1, SECOND_US)
    state, now_us = None, START_US
    given = 0
    for flip in range(10):
        for span_us in (0, SECOND_US):
            state, answer = limit.hold(state, now_us + span_us, 1, f"{flip} {span_us}")
            given += answer[0]
            if answer[0] and span_us:
                state = limit.release(state, now_us + span_us, f"{flip} {span_us}")
    assert given == 3, (
        "once at first, once when that has expired, and once in its place when that is let go"
    )


def test_a_hold_among_many_costs_little_more_than_among_few() -> None:
    """Among 12,800 it was more than a hundred times as much as among 100, as long as all were gone through."""
    assert cost_among(12_800) < 15 * cost_among(100)


def cost_among(holders: int) -> int:
    """Nanoseconds of CPU for a hold, a denial, a renewal and a release; the least of several."""
    limit, full = Concurrency(20_000), Concurrency(holders)
    state: Holders | None = None
    for number in range(holders):
        state, _ = limit.hold(state, START_US + number, 1, str(number))
    least = 10**12
    for turn in range(20):
        begun = process_time_ns()
        now_us = START_US + holders + turn
        state, held = limit.hold(state, now_us, 1, "mine")
        state, denied = full.hold(state, now_us, 1, "yours")
        state, renewed = limit.renew(state, now_us, "mine")
        state = limit.release(state, now_us, "mine")
        least = min(least, process_time_ns() - begun)
        assert (held[0], denied[0], renewed) == (True, False, True)
    return least
