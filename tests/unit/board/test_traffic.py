import pytest
from hypothesis import given, strategies as st

from headgate.board.model import Second
from headgate.board.traffic import TrafficRates, figures_of, last_seconds, spread_evenly, strip_of


def ten(*requests: int) -> list[Second]:
    return [Second(at, many) for at, many in enumerate(requests)]


def test_no_traffic_is_all_zeros() -> None:
    assert figures_of(ten(*[0] * 10)) == TrafficRates(0.0, 0.0, 0.0)


def test_steady_traffic_has_a_burst_ratio_of_one() -> None:
    assert figures_of(ten(*[5] * 10)) == TrafficRates(5.0, 1.0, 0.0)


def test_a_burst_of_a_hundred_in_one_second_has_a_ratio_of_ten() -> None:
    assert figures_of(ten(0, 0, 0, 0, 0, 0, 0, 0, 100, 0)) == TrafficRates(10.0, 10.0, 0.0)


@pytest.mark.parametrize("rate", [20, 50, 1_000])
@pytest.mark.parametrize("first", [1, 10, 20])
def test_steady_traffic_that_has_just_begun_is_no_burst(rate: int, first: int) -> None:
    """Whatever part of its first second it began in, and whatever its rate."""
    for silent in range(9, -1, -1):
        counts = [0] * silent + [first * rate // 20] + [rate] * (9 - silent)
        assert figures_of(ten(*counts)).burst_ratio <= 2.0


def test_a_second_that_stands_out_is_a_burst_soon_after_traffic_began() -> None:
    begun = [0, 0, 5, 5, 5, 5, 5, 0, 0, 100]
    assert figures_of(ten(*begun)).burst_ratio == 6.4


def test_a_burst_is_known_as_one_when_it_is_over() -> None:
    assert figures_of(ten(0, 0, 0, 0, 0, 0, 0, 0, 60, 60)).burst_ratio == 1.0
    assert figures_of(ten(0, 0, 0, 0, 0, 0, 0, 60, 60, 0)).burst_ratio == 5.0


@pytest.mark.parametrize(
    "counts, ratio",
    [
        ((50, 50, 50, 50, 50, 50, 50, 50, 50, 0), 1.0),
        ((50, 50, 50, 0, 0, 0, 0, 0, 0, 0), 1.0),
        ((50, 0, 0, 0, 0, 0, 0, 0, 0, 0), 1.0),
        ((50, 50, 1, 0, 0, 0, 0, 0, 0, 0), 1.0),  # It ended early in its last second,
        ((50, 50, 49, 0, 0, 0, 0, 0, 0, 0), 150 / 149),  # or late in it.
        ((20, 60, 45, 50, 0, 0, 0, 0, 0, 0), 240 / 175),  # Never quite the same.
        ((50, 50, 50, 2, 2, 2, 2, 2, 2, 2), 1.0),  # It fell to a lower level,
        ((50, 10, 10, 10, 10, 10, 10, 10, 10, 10), 1.0),
        ((50, 30, 30, 30, 30, 30, 30, 30, 30, 30), 500 / 320),  # or to one not much lower.
        ((0, 0, 5, 5, 5, 5, 5, 0, 0, 0), 2.0),  # Five seconds of steady traffic.
        # Bursts stay bursts, whatever was before and comes after.
        ((0, 0, 0, 0, 0, 0, 0, 0, 100, 0), 10.0),
        ((0, 0, 0, 0, 100, 0, 0, 0, 0, 0), 10.0),
        ((0, 0, 100, 0, 0, 0, 0, 0, 0, 0), 10.0),
        ((0, 0, 50, 50, 0, 0, 0, 0, 0, 0), 5.0),  # At once, but around the end of a second.
        ((5, 5, 5, 5, 5, 5, 5, 5, 5, 100), 1000 / 145),
        ((5, 5, 5, 5, 100, 0, 0, 0, 0, 0), 1000 / 120),
        ((5, 5, 5, 5, 100, 5, 5, 5, 5, 5), 1000 / 145),
        ((50, 50, 50, 0, 0, 0, 0, 0, 0, 300), 3000 / 450),  # After traffic that has ended.
        ((50, 50, 0, 0, 0, 0, 0, 300, 0, 0), 2400 / 400),
    ],
)
def test_traffic_that_ends_is_no_burst_and_a_burst_that_ends_is_one(
    counts: tuple[int, ...], ratio: float
) -> None:
    assert figures_of(ten(*counts)).burst_ratio == pytest.approx(ratio)


def readings(counts: list[int]) -> list[float]:
    """The burst ratio with every second that passes, each looking back over ten."""
    return [figures_of(ten(*counts[at - 10 : at])).burst_ratio for at in range(10, len(counts) + 1)]


@given(
    steady=st.integers(2, 500).flatmap(
        lambda rate: st.lists(st.integers(rate, 2 * rate), min_size=10, max_size=20)
    ),
    share=st.floats(0, 1),
    after=st.floats(0, 1),
)
def test_traffic_that_falls_to_any_level_at_any_moment_has_a_low_ratio(
    steady: list[int], share: float, after: float
) -> None:
    """Every second may have up to twice as many requests as another one; the threshold of a burst is 3."""
    low = int(min(steady) * after)
    last = max(low, int(min(steady) * share))
    assert max(readings([*steady, last, *[low] * 12])) <= 2 + 1e-9


@given(
    requests=st.integers(20, 10_000),
    share=st.floats(0, 1),
    quiet=st.lists(st.sampled_from([0, 0, 0, 1]), min_size=10, max_size=10),
)
def test_a_burst_onto_silence_is_known_for_six_seconds(
    requests: int, share: float, quiet: list[int]
) -> None:
    """The first second of them may see only a part of it; it is known from the second after it on."""
    part = int(requests * share)
    split = readings([*[0] * 10, part, requests - part, *[0] * 10])
    assert min(split[3:9]) > 3
    if requests >= 100:
        assert max(readings([*quiet, requests, *quiet])[1:3]) > 3


@given(before=st.lists(st.integers(1, 300), min_size=9, max_size=9), last=st.integers(300, 9_000))
def test_a_second_that_stands_out_from_the_nine_before_it_is_judged_as_defined(
    before: list[int], last: int
) -> None:
    """However that traffic went up and down."""
    counts = [*before, last]
    assert figures_of(ten(*counts)).burst_ratio == pytest.approx(last * 10 / sum(counts))


@given(counts=st.lists(st.integers(0, 1_000), min_size=10, max_size=10))
def test_the_ratio_is_at_most_the_busiest_second_against_the_mean_of_ten(counts: list[int]) -> None:
    ratio = figures_of(ten(*counts)).burst_ratio
    if sum(counts) >= 20:
        assert 1 - 1e-9 <= ratio <= max(counts) * 10 / sum(counts) + 1e-9
    else:
        assert ratio == 0


def test_fewer_than_twenty_requests_are_no_evidence_of_a_burst() -> None:
    assert figures_of(ten(0, 0, 0, 0, 0, 0, 0, 0, 19, 0)).burst_ratio == 0.0
    assert figures_of(ten(0, 0, 0, 0, 0, 0, 0, 0, 20, 0)).burst_ratio == 10.0


def test_the_deny_rate_is_a_share_of_all_requests() -> None:
    seconds = [Second(0, 30, 20), Second(1, 10, 10)]
    assert figures_of(seconds).deny_rate == 0.75


def test_buckets_of_several_nodes_are_added_and_those_outside_are_left_out() -> None:
    one = strip_of([Second(89, 9, 9), Second(90, 1), Second(95, 2, 1), Second(100, 9, 9)], 100)
    other = strip_of([Second(95, 3, 1), Second(99, 4)], 99)
    seconds = last_seconds([one, other, other._replace(last=10)], 99)
    assert [one.at for one in seconds] == list(range(90, 100))
    assert [one.requests for one in seconds] == [1, 0, 0, 0, 0, 5, 0, 0, 0, 4]
    assert sum(one.denied for one in seconds) == 2


def test_counts_gathered_over_several_seconds_are_spread_without_losing_one() -> None:
    assert spread_evenly(7, 9, 10, 2) == [Second(7, 3, 0), Second(8, 3, 1), Second(9, 4, 1)]
    assert spread_evenly(7, 7, 10, 2) == [Second(7, 10, 2)]
