"""Charges: what they are made of, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

import headgate
from headgate import CalendarWindow, Charge, FixedWindow, Rate, UsageError
from headgate.algorithms import Calendar
from headgate.charge_kind import ChargeKind

MINUTE_US = 60_000_000


def test_text_a_rate_and_a_limit_say_the_same() -> None:
    limit = FixedWindow(5, MINUTE_US)
    as_text = Charge("a", "5/minute", algorithm="fixed_window")
    as_rate = Charge("a", Rate.parse("5/minute"), 1, "fixed_window")
    assert as_text.limits == as_rate.limits == Charge("a", limit).limits == (limit,)


def test_a_calendar_window_is_a_limit_too() -> None:
    limit = CalendarWindow(5, Calendar("month"))
    assert Charge("a", limit).limits == (limit,)


def test_a_charge_of_another_kind_is_the_same_otherwise() -> None:
    charge = Charge("a", "5/minute; 50/hour", 3, rule="login")
    peek = charge.of_kind(ChargeKind.PEEK)
    assert peek.kind is ChargeKind.PEEK
    assert charge.kind is ChargeKind.TAKE
    assert (peek.key, peek.limits, peek.cost, peek.rule) == ("a", charge.limits, 3, "login")


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"key": 42}, "a key must be a string, not 42"),
        ({"key": b"a"}, "a key must be a string, not b'a'"),
        ({"key": None}, "a key must be a string, not None"),
        ({"rate": 5}, "a rate must be a string such as '100/minute', a Rate or a limit, not 5"),
        ({"rate": None}, "a rate must be a string"),
        ({"algorithm": 5}, "an algorithm must be a string"),
        (
            {"rate": FixedWindow(5, MINUTE_US), "algorithm": "fixed_window"},
            "already has an algorithm",
        ),
        ({"cost": True}, "cost must be a whole number, not True"),
        ({"cost": 1.0}, "cost must be a whole number, not 1.0"),
        ({"cost": -1}, "cost must be between 0 and"),
        ({"cost": 2**53}, "cost must be between 0 and"),
        ({"kind": "take"}, "a kind must be a ChargeKind"),
        ({"rule": 7}, "a rule must be a string, not 7"),
        ({"rule": "\ud800"}, "half a surrogate pair"),
    ],
    ids=str,
)
def test_an_invalid_charge_is_refused_when_it_is_created(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words.replace("(", r"\(")):
        Charge(**{"key": "a", "rate": "5/minute", **arguments})


@pytest.mark.skipif(headgate.compiled, reason="nobody can derive from what is compiled")
def test_limits_that_engines_do_not_know_are_refused() -> None:
    class Own(FixedWindow):
        """A limit that no engine knows of."""

    with pytest.raises(UsageError, match=r"not .*Own"):
        Charge("a", Own(5, MINUTE_US))
