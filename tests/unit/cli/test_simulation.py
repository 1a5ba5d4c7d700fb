"""The pictures tell the truth: simulations agree with counting by hand, and with the words."""

import pytest

from headgate.algorithms import (
    ExponentialBackoff,
    FixedWindow,
    Limit,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from headgate.cli._simulation import (
    COLUMNS,
    QUIET,
    WINDOWS,
    AllLimits,
    OneLimit,
    Outcome,
    edges_of,
    plan,
    plan_start,
    run,
)
from headgate.rate import limits_of

NOW_US = 1_800_000_000_000_000
SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
COLUMNS_HIT = WINDOWS * COLUMNS - QUIET

RATES = [
    "0/minute",
    "1/ms",
    "1/s",
    "4/s",
    "5 per 300s",
    "100/minute",
    "499/s",
    "1001/week",
    "700000/second",
    "1000000/day",
    "8796093022208/366d",
]
BUCKETS = ["100/minute burst 20", "10/minute burst 1000", "1000000/second burst 1", "7/s burst 3"]
CALENDARS = [
    "1000/calendar month in Europe/Berlin anchor 15",
    "3/calendar day in America/New_York",
    "9007199254740991/calendar week anchor 3",
]


def simulated(limit: Limit, cost: int = 1) -> tuple[list[int], list[int]]:
    """Admitted hits per column, and per window."""
    timeline = run(OneLimit(limit), plan_start((limit,), cost, edges_of(limit, NOW_US)))
    admitted = list(timeline.admitted)
    sums = [sum(admitted[i : i + COLUMNS]) for i in range(0, WINDOWS * COLUMNS, COLUMNS)]
    return admitted, sums


class Counted:
    """A gate that counts how often it was asked."""

    def __init__(self, limit: Limit) -> None:
        self._gate = OneLimit(limit)
        self.limits = self._gate.limits
        self.takes = 0

    def take(self, now_us: int, cost: int) -> Outcome:
        self.takes += 1
        return self._gate.take(now_us, cost)


@pytest.mark.parametrize("cost", [1, 7])
@pytest.mark.parametrize("rate", RATES + BUCKETS + CALENDARS)
def test_any_rate_takes_a_few_thousand_steps(rate: str, cost: int) -> None:
    (limit,) = limits_of(rate)
    gate = Counted(limit)
    timeline = run(gate, plan_start((limit,), cost, edges_of(limit, NOW_US)))
    assert gate.takes <= 10_000
    assert len(timeline.admitted) == len(timeline.denied) == WINDOWS * COLUMNS
    came = [a + d for a, d in zip(timeline.admitted, timeline.denied, strict=True)]
    assert came == [0] * QUIET + [timeline.plan.per_column] * COLUMNS_HIT


@pytest.mark.parametrize(
    "algorithm", ["exponential_backoff", "adaptive", "fixed_window", "sliding_window"]
)
@pytest.mark.parametrize("rate", RATES)
def test_so_does_any_algorithm(rate: str, algorithm: str) -> None:
    (limit,) = limits_of(rate, algorithm)
    gate = Counted(limit)
    run(gate, plan_start((limit,), 1, edges_of(limit, NOW_US)))
    assert gate.takes <= 10_000


@pytest.mark.parametrize("limit", [1, 4, 100, 499, 1_001, 700_000])
def test_fixed_window_admits_its_limit_on_either_side_of_an_edge(limit: int) -> None:
    """Half a window of hits before the edge, half a window after it, at least twice the limit a window."""
    admitted, sums = simulated(FixedWindow(limit, MINUTE_US))
    assert sums == [limit] * WINDOWS
    assert sum(admitted[QUIET : QUIET + COLUMNS]) == 2 * limit


@pytest.mark.parametrize("limit", [1, 4, 100, 499, 1_001, 70_000])
def test_sliding_log_never_admits_more_than_its_limit_in_a_window(limit: int) -> None:
    admitted, _ = simulated(SlidingLog(limit, MINUTE_US))
    spans = [sum(admitted[i : i + COLUMNS]) for i in range(len(admitted) - COLUMNS + 1)]
    assert max(spans) == limit


@pytest.mark.parametrize("limit", range(2, 20))
def test_sliding_window_settles_at_one_less_than_a_small_limit(limit: int) -> None:
    """What `headgate rate` says about small limits, for a caller who really never pauses."""
    assert _hammered(SlidingWindow(limit, SECOND_US), windows=12)[2:] == [limit - 1] * 10


def test_sliding_window_of_one_admits_every_other_window() -> None:
    assert _hammered(SlidingWindow(1, SECOND_US), windows=8) == [1, 0, 1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize("limit", [2, 4, 100])
def test_sliding_window_admits_just_under_twice_its_limit_at_worst(limit: int) -> None:
    """All at the end of one window, and what has faded just before the end of the next."""
    window = SlidingWindow(limit, SECOND_US)
    state, answer = window.take(None, SECOND_US - 1, limit)
    assert answer[0]
    state, answer = window.take(state, 2 * SECOND_US - 2, limit - 1)
    assert answer[0]
    assert not window.peek(state, 2 * SECOND_US - 2, 1)[0]


def _hammered(limit: Limit, *, windows: int) -> list[int]:
    state = None
    admitted = [0] * windows
    for now_us in range(0, windows * SECOND_US, 500):
        state, answer = limit.take(state, now_us, 1)
        admitted[now_us // SECOND_US] += answer[0]
    return admitted


@pytest.mark.parametrize(
    "limit, burst, steady", [(100, 20, 5), (100, 100, 5), (1_000, 1, None), (700_000, 7_000, None)]
)
def test_token_bucket_gives_its_burst_and_then_its_rate(
    limit: int, burst: int, steady: int | None
) -> None:
    admitted, sums = simulated(TokenBucket(limit, MINUTE_US, burst))
    assert sums[2] == pytest.approx(limit, abs=limit // 500 + 1)
    if steady is not None:
        assert admitted[-5:] == [steady] * 5
    assert sum(admitted[QUIET : QUIET + COLUMNS]) <= limit + burst


def test_a_bucket_too_fine_to_draw_whole_is_drawn_in_pieces() -> None:
    (limit,) = limits_of("1000000/second burst 1")
    found = plan_start((limit,), 1, edges_of(limit, NOW_US))
    assert not found.whole
    assert found.batch == 1
    timeline = run(OneLimit(limit), found)
    assert timeline.admitted[QUIET:] == (found.per_column // 2,) * COLUMNS_HIT


def test_backoff_is_driven_up_by_batches_as_by_single_hits() -> None:
    """Hits come in batches of hundreds, and the first that is denied still leads to the cool-down."""
    limit = ExponentialBackoff(96_000, MINUTE_US)
    admitted, sums = simulated(limit)
    assert sums == [96_000, 96_000, limit.limit_at(limit.max_level)]
    assert admitted[COLUMNS + COLUMNS // 2 : 2 * COLUMNS + COLUMNS // 2] == [0] * COLUMNS


@pytest.mark.parametrize("cost", [1, 7, 30])
def test_a_hit_costs_what_it_costs(cost: int) -> None:
    _, sums = simulated(FixedWindow(1_000, MINUTE_US), cost)
    assert sums == [1_000 // cost] * WINDOWS


def test_one_limit_alone_and_in_a_limiter_admit_the_same() -> None:
    limits = limits_of("100/minute burst 20")
    found = plan_start(limits, 1, edges_of(limits[0], NOW_US))
    assert run(AllLimits(limits), found) == run(OneLimit(limits[0]), found)


def test_several_limits_admit_what_the_tightest_does() -> None:
    limits = limits_of("10/second; 60/minute", "fixed_window")
    found = plan(limits, 1, edges_of(limits[1], NOW_US))
    assert found is not None
    timeline = run(AllLimits(limits), found)
    sums = [sum(timeline.admitted[i : i + COLUMNS]) for i in range(0, WINDOWS * COLUMNS, COLUMNS)]
    assert sums == [60, 60, 60]
    assert timeline.refusals == (0, sum(timeline.denied))


def test_a_view_that_would_take_too_long_is_left_out() -> None:
    limits = limits_of("1/second; 10000/day")
    assert plan(limits, 1, edges_of(limits[1], NOW_US)) is None
