"""The checks of the table of fields: every bound from both sides, and every type in the wrong place."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.rules.format.document import Document
from headgate.rules.format.error_collector import ErrorCollector
from headgate.rules.format.fields import COST, RULE
from headgate.rules.format.match_fields import MATCH


def errors_in(rule: dict[str, Any]) -> int:
    errors = ErrorCollector(Document("rule", rule, (), lambda: 0))
    RULE.check_fields(rule, None, errors)
    return errors.count


RIGHT: dict[str, dict[str, Any]] = {
    "no field at all": {},
    "another name": {"identifier_type": "user_id"},
    "a null": {"description": None},
    "a null inside": {"match": {"host": None}},
    "quotes in a text": {"description": 'a","shadow":7,"x":"'},
    "the longest name": {"rule_id": "a" * 128},
    "the largest limit": {"limit": 2**53 - 1},
    "the smallest limit": {"limit": 0},
    "the longest window": {"window_size_seconds": 31_622_400},
    "the lowest priority": {"priority": -1_000_000},
    "the highest priority": {"priority": 1_000_000},
    "the highest percentage": {"enforce_percent": 100},
    "no methods": {"match": {"methods": []}},
    "the most methods": {"match": {"methods": ["GET"] * 64}},
    "the most parts": {"identifier": ["host"] * 8},
    **{one.name: {one.name: one.example} for one in RULE.fields},
    **{f"match.{one.name}": {"match": {one.name: one.example}} for one in MATCH.fields},
    **{f"cost.{one.name}": {"cost": {"header": "x", one.name: one.example}} for one in COST.fields},
}


@pytest.mark.parametrize("rule", RIGHT.values(), ids=RIGHT)
def test_what_is_within_every_bound_passes(rule: dict[str, Any]) -> None:
    assert errors_in(rule) == 0


WRONG: dict[str, dict[str, Any]] = {
    "an unknown field": {"rules": "a"},
    "a word with more behind it": {"algorithm": "fixed_windows"},
    "a text that is too long": {"rule_id": "a" * 129},
    "an empty text": {"rate": ""},
    "a pattern that is not met": {"rule_id": "-a"},
    "a limit that is too high": {"limit": 2**53},
    "a limit that is too low": {"limit": -1},
    "a burst of nothing": {"burst": 0},
    "a window that is too long": {"window_size_seconds": 31_622_401},
    "no window": {"window_size_seconds": 0},
    "a priority that is too low": {"priority": -1_000_001},
    "a priority that is too high": {"priority": 1_000_001},
    "more than all of them": {"enforce_percent": 101},
    "a number in quotes": {"limit": "007"},
    "a fraction": {"limit": 1.5},
    "a flag for a number": {"limit": True},
    "a number for a flag": {"stop": 1},
    "a list where there is none": {"rate": ["1/s"]},
    "too many methods": {"match": {"methods": ["GET"] * 65}},
    "a method that is a number": {"match": {"methods": ["GET", 7]}},
    "no parts": {"identifier": []},
    "too many parts": {"identifier": ["host"] * 9},
    "a cost without its header": {"cost": {"default": 1}},
    "a calendar without a period": {"calendar": {"anchor": 1}},
    "half a surrogate pair": {"description": "\ud800"},
}


@pytest.mark.parametrize("rule", WRONG.values(), ids=WRONG)
def test_what_is_beyond_a_bound_is_one_error(rule: dict[str, Any]) -> None:
    assert errors_in(rule) == 1
