from headgate.board.model import Second
from headgate.board.traffic import Figures, figures_of, last_seconds, spread, strip_of


def ten(*requests: int) -> list[Second]:
    return [Second(at, many) for at, many in enumerate(requests)]


def test_no_traffic_is_all_zeros() -> None:
    assert figures_of(ten(*[0] * 10)) == Figures(0.0, 0.0, 0.0)


def test_steady_traffic_has_a_burst_ratio_of_one() -> None:
    assert figures_of(ten(*[5] * 10)) == Figures(5.0, 1.0, 0.0)


def test_a_burst_of_a_hundred_in_one_second_has_a_ratio_of_ten() -> None:
    assert figures_of(ten(0, 0, 0, 0, 0, 0, 0, 0, 0, 100)) == Figures(10.0, 10.0, 0.0)


def test_fewer_than_twenty_requests_say_nothing_about_bursts() -> None:
    assert figures_of(ten(0, 0, 0, 0, 0, 0, 0, 0, 0, 19)).burst_ratio == 0.0
    assert figures_of(ten(0, 0, 0, 0, 0, 0, 0, 0, 0, 20)).burst_ratio == 10.0


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
    assert spread(7, 9, 10, 2) == [Second(7, 3, 0), Second(8, 3, 1), Second(9, 4, 1)]
    assert spread(7, 7, 10, 2) == [Second(7, 10, 2)]
