"""What a node counts, and what the counts of all nodes say."""

import tracemalloc

from hypothesis import given, strategies as st

from headgate.adaptive.monitor import OVERALL, Monitor, rates_of
from headgate.board.model import Second
from headgate.board.traffic import SECONDS, SecondCounts, TrafficRates, settled_second, strip_of

NOW = 1_800_000_000


def counted(monitor: Monitor, scope: str, requests: int, denied: int = 0) -> None:
    count = monitor.counter(scope)
    for at in range(requests):
        count.add(allowed=at >= denied)


def test_a_node_counts_per_rule_and_overall() -> None:
    monitor = Monitor()
    counted(monitor, "login", 1_000)  # Before the first second is known: in no bucket.
    monitor.note(NOW)
    for second in range(1, 11):
        counted(monitor, "login", 30, 15)
        counted(monitor, OVERALL, 40, 15)
        monitor.note(NOW + second)
    assert rates_of([monitor.strips()], NOW + 10) == {
        "login": TrafficRates(30.0, 1.0, 0.5),
        OVERALL: TrafficRates(40.0, 1.0, 15 / 40),
    }


def test_a_rule_that_begins_later_has_all_its_requests_in_the_seconds_since() -> None:
    monitor = Monitor()
    monitor.note(NOW)
    counted(monitor, "new", 50)
    monitor.note(NOW + 1)
    assert rates_of([monitor.strips()], NOW + 1) == {"new": TrafficRates(5.0, 1.0, 0.0)}
    monitor.note(NOW + 2)
    assert rates_of([monitor.strips()], NOW + 2) == {"new": TrafficRates(5.0, 10.0, 0.0)}


def test_a_late_reading_is_spread_over_the_seconds_it_covers() -> None:
    """A busy node is not a burst."""
    monitor = Monitor()
    monitor.note(NOW)
    for second in (1, 2, 3, 8, 9, 10):
        counted(monitor, OVERALL, 250 if second == 8 else 50)
        monitor.note(NOW + second)
    assert rates_of([monitor.strips()], NOW + 10)[OVERALL] == TrafficRates(50.0, 1.0, 0.0)


def steady(last: int, requests: int = 10) -> dict[str, SecondCounts]:
    return {"r": strip_of([Second(at, requests) for at in range(last - 11, last + 1)], last)}


def test_rates_add_up_over_nodes() -> None:
    assert rates_of([steady(NOW), steady(NOW)], NOW) == {"r": TrafficRates(20.0, 1.0, 0.0)}


def test_a_node_that_is_a_little_late_changes_nothing() -> None:
    for late in (1, 2):
        found = rates_of([steady(NOW), steady(NOW - late, 100)], NOW)
        assert found == {"r": TrafficRates(110.0, 1.0, 0.0)}


def test_a_node_that_has_fallen_silent_is_not_waited_for() -> None:
    """What it told of fades away, second by second."""
    means = [
        rates_of([steady(NOW), steady(NOW - late)], NOW)["r"].req_per_sec for late in range(3, 12)
    ]
    assert means == [17.0, 16.0, 15.0, 14.0, 13.0, 12.0, 11.0, 10.0, 10.0]


def test_a_node_whose_seconds_are_not_known_yet_is_no_reason_to_look_back() -> None:
    assert settled_second([0, NOW, NOW + 1], NOW) == NOW
    assert settled_second([], NOW) == NOW


def test_scopes_are_bounded_and_further_ones_are_not_reported() -> None:
    monitor = Monitor(max_scopes=3)
    monitor.note(NOW)
    for name in ("a", "b", "c", "d"):
        counted(monitor, name, 5)
    monitor.note(NOW + 1)
    assert set(monitor.strips()) == {"a", "b"}
    monitor.keep_only(["b"])
    assert set(monitor.scopes) == {OVERALL, "b"}
    counted(monitor, "c", 5)
    monitor.note(NOW + 2)
    assert set(monitor.strips()) == {"b", "c"}


def _allocated_by_adaptive() -> int:
    """Bytes; without what threads that other tests left behind allocate meanwhile."""
    only = tracemalloc.Filter(inclusive=True, filename_pattern="*/headgate/adaptive/*")
    found = tracemalloc.take_snapshot().filter_traces([only])
    return sum(one.size for one in found.statistics("filename"))


def test_memory_does_not_grow_with_traffic() -> None:
    monitor = Monitor()
    counts = [monitor.counter(name) for name in (OVERALL, "a", "b")]

    def busy(begin: int, seconds: int, each: int) -> None:
        for second in range(begin, begin + seconds):
            for count in counts:
                count.requests += each
            monitor.note(NOW + second)

    busy(0, 30, 1_000)
    tracemalloc.start()
    try:
        before = _allocated_by_adaptive()
        busy(30, 3_000, 1_000_000)
        after = _allocated_by_adaptive()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000
    assert len(monitor.strips()["a"].counts) == 24


@given(moves=st.lists(st.tuples(st.integers(-30, 30), st.integers(0, 100)), max_size=40))
def test_clocks_may_step_and_no_bucket_is_negative_or_more_than_was_counted(
    moves: list[tuple[int, int]],
) -> None:
    monitor, second, total = Monitor(), NOW, 0
    for move, requests in moves:
        second += move
        counted(monitor, OVERALL, requests, requests // 2)
        total += requests
        monitor.note(second)
        strip = monitor.strips().get(OVERALL)
        if strip is not None:
            assert min(strip.counts) >= 0
            assert sum(strip.counts[::2]) <= total
            (rates,) = rates_of([monitor.strips()], strip.last).values()
            assert 0 <= rates.deny_rate <= 1
            assert 0 <= rates.burst_ratio <= SECONDS
