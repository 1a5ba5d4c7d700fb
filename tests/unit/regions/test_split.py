"""Limits that are split: regions that never speak to each other admit no more than the limit together."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from headgate import (
    Adaptive,
    Calendar,
    CalendarWindow,
    Charge,
    Concurrency,
    ConfigError,
    ExponentialBackoff,
    FixedWindow,
    Limiter,
    MemoryEngine,
    Regions,
    Request,
    RuleSet,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
    UsageError,
)
from headgate.regions.settings import read_regions
from headgate.regions.shares import share_of, shares
from headgate.testing import ManualClock

if TYPE_CHECKING:
    from headgate import Limit

MINUTE_US = 60_000_000
WEIGHTS = {"asia": 1, "eu": 2, "us": 4}
LIMITS: list[Limit] = [
    FixedWindow(100, MINUTE_US),
    CalendarWindow(100, Calendar("day")),
    SlidingWindow(100, MINUTE_US),
    SlidingLog(100, MINUTE_US),
    TokenBucket(100, MINUTE_US, 100),
    ExponentialBackoff(100, MINUTE_US),
    Adaptive(100, MINUTE_US, 100),
    Concurrency(100),
]
RULES = """
rules:
  - rule_id: api
    identifier: ip_address
    rate: 100/minute
    consistency: split
"""


def limiters(clock: ManualClock, weights: dict[str, int] = WEIGHTS) -> dict[str, Limiter]:
    """A limiter in each region, each on an engine of its own."""
    return {
        name: Limiter(MemoryEngine(clock=clock), regions=Regions(name, weights)) for name in weights
    }


@given(
    st.integers(0, 2**53 - 1),
    st.dictionaries(st.text("abcdefgh", min_size=1), st.integers(0, 10**6), min_size=1),
)
def test_shares_add_up_and_differ_from_the_exact_part_by_less_than_a_unit(
    units: int, weights: dict[str, int]
) -> None:
    total = sum(weights.values())
    if not total:
        return
    given_out = shares(units, weights)
    assert sum(given_out.values()) == units
    for name, weight in weights.items():
        assert abs(given_out[name] * total - units * weight) < total


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: type(limit).__name__)
def test_regions_admit_the_limit_together_and_not_a_unit_more(limit: Limit) -> None:
    """Each of them is asked for far more than it has."""
    admitted = {}
    for name, limiter in limiters(ManualClock()).items():
        charge = Charge("key", limit.across_regions("split"))
        if isinstance(limit, Concurrency):
            part = share_of(limit.across_regions("split"), Regions(name, WEIGHTS))
            admitted[name] = part.limit
        else:
            admitted[name] = sum(limiter.decide([charge]).allowed for _ in range(150))
    assert admitted == shares(100, WEIGHTS)
    assert sum(admitted.values()) == 100


def test_hits_requests_peeks_and_figures_agree_about_the_share() -> None:
    clock = ManualClock()
    eu = limiters(clock)["eu"]
    limit = eu.limit("key", "70/minute", algorithm="fixed_window", consistency="split")
    assert [bool(limit.hit()) for _ in range(21)] == [True] * 20 + [False]
    assert limit.stats().limit == 70
    assert limit.stats().remaining == 0
    charge = Charge("key", FixedWindow(70, MINUTE_US).across_regions("split"))
    denied = eu.decide([charge, Charge("other", "5/minute")])
    assert not denied.allowed
    assert denied.limit == 20


def test_a_region_without_weight_denies_and_others_have_all() -> None:
    weights = {"drained": 0, "eu": 1}
    both = limiters(ManualClock(), weights)
    for algorithm in ("fixed_window", "token_bucket"):
        admitted = [
            both[name]
            .limit(algorithm, "10/minute", algorithm=algorithm, consistency="split")
            .hit(10)
            .allowed
            for name in weights
        ]
        assert admitted == [False, True]


def test_rules_are_split_too() -> None:
    rules = RuleSet.parse(RULES)
    eu = Limiter(rules=rules, regions=Regions("eu", {"eu": 1, "us": 3}))
    answers = [eu.decide_request(Request(path="/", ip="10.0.0.1")) for _ in range(26)]
    assert [one.allowed for one in answers] == [True] * 25 + [False]


def test_a_mode_that_cannot_be_honoured_is_refused_when_it_is_loaded() -> None:
    rules = RuleSet.parse(RULES)
    with pytest.raises(ConfigError, match=r"rule 'api': consistency split is for several regions"):
        Limiter(rules=rules)
    with pytest.raises(UsageError, match="there is one; say which regions"):
        Limiter().limit("key", "10/minute", consistency="split")
    here = Regions("eu", WEIGHTS)
    with pytest.raises(ConfigError, match="merge takes the Redis or Valkey that the nodes"):
        Limiter(rules=RuleSet.parse(RULES.replace("split", "merge")), regions=here)
    with pytest.raises(UsageError, match=r"sliding_window cannot be shared .* by escrow"):
        SlidingWindow(10, MINUTE_US).across_regions("escrow")
    with pytest.raises(UsageError, match=r"adaptive cannot be shared .* only by split"):
        Adaptive(10, MINUTE_US, 10).across_regions("merge")
    with pytest.raises(UsageError, match="consistency must be 'exact' or 'leased', or"):
        Limiter().limit("key", "10/minute", consistency="guess")  # type: ignore[call-overload]


def test_a_limit_remembers_its_mode() -> None:
    limit = FixedWindow(10, MINUTE_US).across_regions("merge")
    assert limit != FixedWindow(10, MINUTE_US)
    assert limit != FixedWindow(10, MINUTE_US).across_regions("split")
    assert pickle.loads(pickle.dumps(limit)) == limit  # noqa: S301 - what we have just made
    assert repr(limit) == "FixedWindow(limit=10, window_us=60000000).across_regions('merge')"


@pytest.mark.parametrize(
    "here, weights, said",
    [
        ("eu", {"us": 1}, "is not among the regions"),
        ("eu", {"eu": 0}, "needs a weight above 0"),
        ("eu", {"eu": -1}, "between 0 and 1000000"),
        ("e u", {"e u": 1}, "a region is named by letters"),
        ("eu", {"eu": True}, "must be a whole number"),
    ],
)
def test_invalid_regions_are_refused(here: str, weights: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Regions(here, weights)


@pytest.mark.parametrize(
    "words, said",
    [
        (("", "us=headgate://h:1", ()), "this one has no name"),
        (("eu", "", ()), "there is no region but eu"),
        (("eu", "us", ()), "written with its nodes"),
        (("eu", "us=redis://h:1", ()), "written with its nodes"),
        (("eu", "eu=headgate://h:1", ()), "leave it out"),
        (("eu", "us=headgate://h:1 us=headgate://h:2", ()), "is there twice"),
        (("eu", "us=headgate://h:1", ("eu=2", "asia=1")), "'asia' has a weight, and no nodes"),
        (("eu", "us=headgate://h:1", ("eu",)), "a weight is written as eu=2"),
        (("eu", "us=headgate://h:99999", ()), "a number from 1 to 65535"),
    ],
)
def test_invalid_settings_of_regions_are_refused(
    words: tuple[str, str, tuple[str, ...]], said: str
) -> None:
    with pytest.raises((ConfigError, UsageError), match=said):
        read_regions(*words, 0.2)


def test_settings_name_the_regions() -> None:
    found = read_regions("eu", "us=headgate://:t@h:1,g:2 asia=headgates://k:3", ("us=3",), 0.2)
    assert found is not None
    assert found.regions == Regions(
        "eu", {"asia": 1, "eu": 1, "us": 3}, linked=True, in_service=True
    )
    assert found.urls == {"us": "headgate://:t@h:1,g:2", "asia": "headgates://k:3"}
    only_split = read_regions("eu", "", ("eu=1", "us=1"), 0.2)
    assert only_split is not None
    assert not only_split.regions.linked
    assert read_regions("", "", (), 0.2) is None
