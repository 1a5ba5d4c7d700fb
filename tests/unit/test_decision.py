"""A decision as an object: a value that is equal to its like, can be sent elsewhere, and tells its parts by name."""

from __future__ import annotations

import copy
import math
import pickle
from typing import TYPE_CHECKING
from unittest.mock import ANY

import pytest

from headgate import Charge, Decision, FixedWindow, Limiter, TokenBucket
from headgate.algorithms import NEVER
from headgate.decision import ENGINE, NO_LIMIT, UNLIMITED, Context

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = FixedWindow(5, 60_000_000)
ALLOWED = (True, 4, 0, 60_000_000, 0)
DENIED = (False, 0, 1_500_000, 60_000_000, 0)


def sent(decision: Decision) -> Decision:
    """As another process gets it."""
    received: Decision = pickle.loads(pickle.dumps(decision))  # noqa: S301 - our own
    return received


def several() -> Decision:
    """Of three limits, in order."""
    charges = [Charge("a", LIMIT), Charge("b", TokenBucket(3, 1_000_000)), Charge("c", LIMIT)]
    return Limiter().decide(charges)


@pytest.mark.parametrize(
    "decision",
    [
        Decision("k", LIMIT, ALLOWED),
        Decision("k", LIMIT, DENIED, Context("cache", degraded=True, rule="rule")),
        Decision("", NO_LIMIT, UNLIMITED),
        several(),
    ],
    ids=["allowed", "denied", "unlimited", "several"],
)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, sent])
def test_it_is_a_value(decision: Decision, copied: Callable[[Decision], Decision]) -> None:
    """A copy is equal and hashes alike; so a decision can cross to another process, in an exception too."""
    twin = copied(decision)
    assert twin == decision
    assert hash(twin) == hash(decision)
    assert repr(twin) == repr(decision)
    assert [one.key for one in twin.rules] == [one.key for one in decision.rules]


@pytest.mark.parametrize(
    "other",
    [
        Decision("l", LIMIT, ALLOWED),
        Decision("k", FixedWindow(6, 60_000_000), ALLOWED),
        Decision("k", LIMIT, DENIED),
        Decision("k", LIMIT, ALLOWED, Context("cache")),
        Decision("k", LIMIT, ALLOWED, ENGINE, (Decision("k", LIMIT, ALLOWED),)),
        ("k", LIMIT, ALLOWED, ENGINE, ()),
        None,
    ],
)
def test_it_is_equal_to_nothing_else(other: object) -> None:
    """Everything that it is made of counts, and a tuple of that is no decision."""
    assert Decision("k", LIMIT, ALLOWED) != other


def test_it_leaves_the_answer_to_others_that_know_better() -> None:
    """As every value does."""
    assert Decision("k", LIMIT, ALLOWED) == ANY


def test_each_property_reports_one_fact() -> None:
    """Each name says one thing about the limit, the answer or the context."""
    reserved = "a reservation"
    context = Context("cache", degraded=True, rule="rule", token=reserved)
    decision = Decision("k", LIMIT, (False, 2, 1_500_000, 3_000_000, 1), context)
    assert not decision
    assert not decision.allowed
    assert (decision.limit, decision.window, decision.burst, decision.algorithm) == (
        5, 60.0, 5, "fixed_window",
    )  # fmt: skip
    assert (decision.remaining, decision.retry_after, decision.retry_after_us) == (
        2, 1.5, 1_500_000,
    )  # fmt: skip
    assert (decision.reset_after, decision.backoff_level, decision.never) == (3.0, 1, False)
    assert (decision.source, decision.degraded, decision.rule, decision.token) == (
        "cache", True, "rule", reserved,
    )  # fmt: skip
    assert decision.limited
    assert decision.rules == (decision,)


def test_what_never_fits_is_never_retried() -> None:
    """The number that stands for never is not shown as seconds."""
    decision = Decision("k", LIMIT, (False, 5, NEVER, 0, 0))
    assert decision.never
    assert decision.retry_after == math.inf
    assert "never fits" in repr(decision)


def test_nothing_limits_what_was_not_asked() -> None:
    """No numbers, no rules."""
    decision = Decision("", NO_LIMIT, UNLIMITED)
    assert decision
    assert not decision.limited
    assert decision.rules == ()
    assert decision.algorithm == "none"


def test_several_limits_are_listed_in_order() -> None:
    """The one with the least left speaks for all of them."""
    decision = several()
    assert [one.key for one in decision.rules] == ["a", "b", "c"]
    assert (decision.key, decision.remaining) == ("b", 2)
    assert all(one.rules == (one,) for one in decision.rules)


@pytest.mark.parametrize("name", ["allowed", "remaining", "retry_after", "limit", "rule", "source"])
def test_what_is_derived_is_read_only(name: str) -> None:
    """Nobody turns a denial into something else by accident."""
    with pytest.raises(AttributeError):
        setattr(Decision("k", LIMIT, DENIED), name, True)


def test_the_wait_that_was_asked_for_is_over_once() -> None:
    """Then it can be used at once, and the reset is as much nearer."""
    decision = Decision("k", LIMIT, (True, 0, 400_000, 900_000, 0)).after_waiting()
    assert (decision.retry_after_us, decision.reset_after) == (0, 0.5)
