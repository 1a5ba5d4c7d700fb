"""The choice of an algorithm: a table of what calls for what, and what holds whatever the traffic does."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from headgate.adaptive.selector import (
    BACKOFF,
    BUCKET,
    DEFAULT_THRESHOLDS,
    FIRST_CHOICE,
    WINDOW,
    Choice,
    Thresholds,
    pin,
    select,
    unpin,
)
from headgate.board.traffic import TrafficRates
from headgate.errors import UsageError

SECOND_US = 1_000_000
LATER_US = 1_800_000_000 * SECOND_US
SETTLED = {
    one: Choice(7, one, LATER_US - 60 * SECOND_US, "as it was") for one in (WINDOW, BUCKET, BACKOFF)
}


@pytest.mark.parametrize(
    "before, rate, ratio, denied, after",
    [
        (WINDOW, 5.0, 1.0, 0.0, WINDOW),
        (WINDOW, 5.0, 3.0, 0.0, WINDOW),  # Above, not at.
        (WINDOW, 5.0, 3.1, 0.0, BUCKET),
        (BUCKET, 5.0, 3.0, 0.0, BUCKET),  # Entered above 3, left below 1.5.
        (BUCKET, 5.0, 1.5, 0.0, BUCKET),
        (BUCKET, 5.0, 1.4, 0.0, WINDOW),
        (BUCKET, 0.0, 0.0, 0.0, WINDOW),  # Nobody asks any more.
        (WINDOW, 30.0, 1.0, 0.5, WINDOW),  # Half denied is not more than half.
        (WINDOW, 20.0, 1.0, 0.9, WINDOW),  # Few ask.
        (WINDOW, 30.0, 1.0, 0.51, BACKOFF),
        (WINDOW, 30.0, 9.0, 0.51, BACKOFF),  # Abuse before burst.
        (BUCKET, 30.0, 9.0, 0.51, BACKOFF),
        (BACKOFF, 30.0, 1.0, 0.3, BACKOFF),
        (BACKOFF, 10.0, 1.0, 0.9, BACKOFF),
        (BACKOFF, 30.0, 1.0, 0.29, WINDOW),  # Either is enough to leave.
        (BACKOFF, 9.9, 1.0, 0.9, WINDOW),
        (BACKOFF, 9.9, 3.1, 0.9, BUCKET),
        (BACKOFF, 9.9, 2.0, 0.9, WINDOW),  # A burst is entered at its own threshold.
    ],
)
def test_traffic_calls_for(
    before: str, rate: float, ratio: float, denied: float, after: str
) -> None:
    current = SETTLED[before]
    chosen = select(current, TrafficRates(rate, ratio, denied), LATER_US)
    assert chosen.algorithm == after
    if after == before:
        assert chosen is current
    else:
        assert chosen == Choice(8, after, LATER_US, chosen.reason)
        assert chosen.reason != current.reason


@pytest.mark.parametrize(
    "before, rates, reason",
    [
        (WINDOW, (45.0, 1.0, 0.62), "62% of 45.0 requests/s denied, above 50% and 20/s"),
        (WINDOW, (10.0, 4.21, 0.0), "the busiest second had 4.2 times the mean, above 3"),
        (BUCKET, (10.0, 1.2, 0.0), "the burst ratio fell to 1.2, below 1.5"),
        (BUCKET, (0.5, 0.0, 0.0), "too few requests to detect a burst"),
        (BACKOFF, (45.0, 1.0, 0.12), "12% denied, below 30%"),
        (BACKOFF, (4.0, 1.0, 0.9), "4.0 requests/s, below 10/s"),
        (
            BACKOFF,
            (4.0, 5.0, 0.9),
            "4.0 requests/s, below 10/s; the busiest second had 5.0 times the mean, above 3",
        ),
    ],
)
def test_a_choice_says_why(before: str, rates: tuple[float, float, float], reason: str) -> None:
    assert select(SETTLED[before], TrafficRates(*rates), LATER_US).reason == reason


BURST = TrafficRates(10.0, 5.0, 0.0)


def test_the_first_choice_waits_for_nothing_and_later_ones_dwell() -> None:
    first = select(FIRST_CHOICE, BURST, 17)
    assert first[:3] == (1, BUCKET, 17)
    calm = TrafficRates(10.0, 1.0, 0.0)
    dwell_us = DEFAULT_THRESHOLDS.dwell_us
    assert select(first, calm, 17 + dwell_us - 1) is first
    assert select(first, calm, 17 + dwell_us)[:3] == (2, WINDOW, 17 + dwell_us)


def test_a_clock_that_is_a_little_behind_the_choice_is_no_reason_to_change_it() -> None:
    ahead = Choice(3, WINDOW, LATER_US, "by a node whose clock is ahead")
    assert select(ahead, BURST, LATER_US - 40_000) is ahead
    # A step back by an hour is not waited out.
    assert select(ahead, BURST, LATER_US - 3_600 * SECOND_US).epoch == 4


def test_what_a_person_has_pinned_stays_whatever_the_traffic_does() -> None:
    pinned = pin(SETTLED[WINDOW], BACKOFF, LATER_US, "ann", "under attack")
    assert pinned == Choice(8, BACKOFF, LATER_US, "pinned by ann: under attack", "ann")
    for rates in (BURST, TrafficRates(0.0, 0.0, 0.0), TrafficRates(99.0, 1.0, 0.9)):
        assert select(pinned, rates, LATER_US + 3_600 * SECOND_US) is pinned
    loose = unpin(pinned, LATER_US + SECOND_US)
    assert loose == Choice(9, BACKOFF, LATER_US + SECOND_US, "no longer pinned by ann")
    assert select(loose, BURST, LATER_US + 2 * SECOND_US) is loose
    assert select(loose, BURST, LATER_US + 6 * SECOND_US).algorithm == BUCKET
    assert unpin(loose, LATER_US) is loose


def test_a_pin_with_an_end_stands_until_then() -> None:
    ends_us = LATER_US + 60 * SECOND_US
    pinned = pin(SETTLED[WINDOW], BACKOFF, LATER_US, "ann", until_us=ends_us)
    assert select(pinned, BURST, ends_us - 1) is pinned
    over = select(pinned, BURST, ends_us)
    assert over == Choice(9, BACKOFF, ends_us, "no longer pinned by ann")


def test_only_a_candidate_can_be_pinned_and_a_name_is_required() -> None:
    with pytest.raises(UsageError, match="not 'fixed_window'"):
        pin(FIRST_CHOICE, "fixed_window", 0, "ann")
    with pytest.raises(UsageError, match="who"):
        pin(FIRST_CHOICE, WINDOW, 0, "")


@pytest.mark.parametrize(
    "settings",
    [
        {"enter_burst_ratio": 1.0},
        {"leave_deny_rate": 0.6},
        {"leave_abuse_rate": 21},
        {"enter_deny_rate": 1.1},
        {"leave_deny_rate": -0.1},
        {"enter_abuse_rate": float("nan")},
        {"enter_burst_ratio": float("inf")},
        {"dwell_us": -1},
        {"dwell_us": 0.5},
        {"dwell_us": True},
        {"enter_abuse_rate": "20"},
    ],
)
def test_thresholds_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Thresholds(**settings)


def test_thresholds_are_settable() -> None:
    own = Thresholds(enter_burst_ratio=6, leave_burst_ratio=6, dwell_us=0)
    assert select(SETTLED[WINDOW], BURST, LATER_US, own) is SETTLED[WINDOW]
    bucket = select(SETTLED[WINDOW], TrafficRates(9.0, 6.5, 0.0), LATER_US, own)
    assert select(bucket, BURST, LATER_US, own).algorithm == WINDOW  # No dwell, so at once.


# What lies around every threshold, on either side.
rates = st.builds(
    TrafficRates,
    st.sampled_from([0.0, 9.9, 10.1, 19.9, 20.1, 500.0]),
    st.sampled_from([0.0, 1.4, 1.6, 2.9, 3.1, 10.0]),
    st.sampled_from([0.0, 0.29, 0.31, 0.49, 0.51, 1.0]),
)


@given(flaps=st.lists(rates, min_size=2, max_size=6), start_us=st.integers(0, LATER_US))
def test_flapping_every_200_ms_for_ten_minutes_switches_at_most_once_per_dwell(
    flaps: list[TrafficRates], start_us: int
) -> None:
    current, switches = FIRST_CHOICE, []
    for tick in range(10 * 60 * 5):
        now_us = start_us + tick * 200_000
        chosen = select(current, flaps[tick % len(flaps)], now_us)
        if chosen is not current:
            switches.append(now_us)
            assert chosen.epoch == current.epoch + 1
            assert chosen.algorithm != current.algorithm
        current = chosen
    gaps = [after - before for before, after in pairwise(switches)]
    assert all(gap >= DEFAULT_THRESHOLDS.dwell_us for gap in gaps)
    assert len(switches) <= 10 * 60 // 5


@given(low=st.floats(1.5, 3.0), high=st.floats(1.5, 3.0))
def test_traffic_between_leave_and_enter_never_switches(low: float, high: float) -> None:
    """That is what the two thresholds are for: the dwell time alone would only slow the flapping down."""
    for current in (SETTLED[WINDOW], SETTLED[BUCKET]):
        for tick in range(200):
            ratio = low if tick % 2 else high
            assert (
                select(current, TrafficRates(15.0, ratio, 0.0), LATER_US + tick * SECOND_US)
                is current
            )


@given(before=st.sampled_from([WINDOW, BUCKET, BACKOFF]), seen=rates)
def test_the_same_traffic_changes_a_choice_once_and_then_no_more(
    before: str, seen: TrafficRates
) -> None:
    """What has been chosen is what its own traffic calls for: no choice is left by what led to it."""
    chosen = select(SETTLED[before], seen, LATER_US)
    assert select(chosen, seen, LATER_US + 60 * SECOND_US) is chosen
