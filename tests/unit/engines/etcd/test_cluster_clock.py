"""The clock of a cluster: set gently, and never back."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from headgate.engines.etcd.cluster_clock import ClusterClock, TimeAnswer, ahead_us

SECOND_NS = 1_000_000_000


class Machine:
    """A machine's two clocks."""

    def __init__(self, wall_s: float) -> None:
        self.up_ns = 5 * SECOND_NS
        self.wall_ns = round(wall_s * SECOND_NS)

    def run(self, seconds: float) -> None:
        self.up_ns += round(seconds * SECOND_NS)
        self.wall_ns += round(seconds * SECOND_NS)

    def clock(self) -> ClusterClock:
        return ClusterClock(lambda: self.up_ns, lambda: self.wall_ns)


def test_it_starts_with_the_wall_clock_and_does_not_follow_its_steps() -> None:
    machine = Machine(1_000)
    clock = machine.clock()
    assert clock.now_us() == 1_000_000_000
    machine.wall_ns += 3_600 * SECOND_NS
    machine.run(1)
    assert clock.now_us() == 1_001_000_000


@pytest.mark.parametrize("difference_us", [400_000, -400_000])
def test_a_correction_is_slewed_and_never_makes_it_go_back(difference_us: int) -> None:
    machine = Machine(1_000)
    clock = machine.clock()
    clock.slew_to(1_000_000_000 + difference_us)
    seen = []
    for _ in range(1_000):
        machine.run(1)
        seen.append(clock.now_us())
    assert seen == sorted(set(seen))
    assert seen[0] == 1_001_000_000 + (500 if difference_us > 0 else -500)
    assert seen[-1] == 2_000_000_000 + difference_us


def test_a_correction_in_the_middle_of_another_starts_from_where_that_is() -> None:
    machine = Machine(1_000)
    clock = machine.clock()
    clock.slew_to(1_000_400_000)
    machine.run(100)
    assert clock.now_us() == 1_100_050_000
    clock.slew_to(1_100_000_000)
    machine.run(1)
    assert clock.now_us() == 1_101_049_500


def test_it_is_never_behind_what_the_last_owner_wrote() -> None:
    machine = Machine(1_000)
    clock = machine.clock()
    clock.not_before(1_005_000_000)
    assert clock.now_us() == 1_005_000_000
    clock.not_before(900_000_000)
    assert clock.now_us() == 1_005_000_000
    assert clock.lead_us == 5_000_000


def test_the_oldest_node_returns_to_its_wall_clock_gradually() -> None:
    machine = Machine(1_000)
    clock = machine.clock()
    clock.not_before(1_000_100_000)
    for _ in range(300):
        machine.run(1)
        clock.follow_wall()
    assert clock.lead_us == 0


@given(
    st.integers(-10_000_000, 10_000_000),
    st.lists(st.tuples(st.integers(0, 1_000_000), st.integers(0, 1_000_000)), min_size=1),
)
def test_a_clock_that_was_set_by_answers_is_behind_by_the_quickest_way_back_and_never_ahead(
    difference_us: int, ways: list[tuple[int, int]]
) -> None:
    """However long a question was on its way, or waited for a node that was busy."""
    answers, now_us = [], 0
    for there, back in ways:
        answers.append(TimeAnswer(now_us + there + difference_us, now_us + there + back))
        now_us += there + back
    behind_us = difference_us - ahead_us(answers)
    assert behind_us == min(back for _, back in ways)
