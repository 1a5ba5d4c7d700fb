"""What a glance recognises has passed every check; and it recognises the rules that most people write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.rules.document import Document
from headgate.rules.faults import Faults
from headgate.rules.fields import COST, MATCH, RULE
from headgate.rules.parse import parse_rules
from headgate.rules.plain import LONG, is_plain
from headgate.rules.problem import RulesError

RULE_OF_ALL: dict[str, Any] = {
    one.name: one.example for one in RULE.fields if one.name not in {"calendar", *LONG}
}


def text_of(rule: dict[str, Any]) -> str:
    return json.dumps(rule, sort_keys=True, separators=(",", ":"))


def faults_of(rule: dict[str, Any]) -> int:
    faults = Faults(Document("rule", rule, (), lambda: 0))
    RULE.check_fields(rule, None, faults)
    return faults.count


def test_a_rule_with_nearly_every_field_is_plain() -> None:
    assert is_plain(text_of(RULE_OF_ALL))
    assert is_plain(text_of({}))


@pytest.mark.parametrize("name", sorted(RULE_OF_ALL))
def test_a_rule_with_one_field_as_in_its_example_is_plain(name: str) -> None:
    assert is_plain(text_of({name: RULE_OF_ALL[name]}))


BY_EXAMPLE = {
    **{f"match.{one.name}": {"match": {one.name: one.example}} for one in MATCH.fields},
    **{f"cost.{one.name}": {"cost": {"header": "x", one.name: one.example}} for one in COST.fields},
}


@pytest.mark.parametrize("rule", BY_EXAMPLE.values(), ids=BY_EXAMPLE)
def test_a_condition_as_in_its_example_is_plain(rule: dict[str, Any]) -> None:
    assert is_plain(text_of(rule))


NOT_PLAIN: dict[str, dict[str, Any]] = {
    "another name": {"identifier_type": "user_id"},
    "a null": {"description": None},
    "a null inside": {"match": {"host": None}},
    "an unknown field": {"rules": "a"},
    "a word with more behind it": {"algorithm": "fixed_windows"},
    "a text that is too long": {"rule_id": "a" * 129},
    "an empty text": {"rate": ""},
    "a pattern that is not met": {"rule_id": "-a"},
    "a number that is too high": {"limit": 2**53},
    "a number that is too low": {"limit": -1},
    "nothing where one is the least": {"burst": 0},
    "a number with zeros in front, in a text": {"limit": "007"},
    "a fraction": {"limit": 1.5},
    "a flag for a number": {"limit": True},
    "a number for a flag": {"stop": 1},
    "a list where there is none": {"rate": ["1/s"]},
    "too many entries": {"match": {"methods": ["GET"] * 65}},
    "an entry of the wrong kind": {"match": {"methods": ["GET", 7]}},
    "a cost without its header": {"cost": {"default": 1}},
    "a calendar without a period": {"calendar": {"anchor": 1}},
    "a quote that hides a field": {"description": 'a","shadow":7,"x":"'},
    "half a character": {"description": "\ud800"},
}


@pytest.mark.parametrize("rule", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_is_wrong_or_only_unusual_is_not_plain(rule: dict[str, Any]) -> None:
    assert not is_plain(text_of(rule))


EDGES: dict[str, dict[str, Any]] = {
    "the longest name": {"rule_id": "a" * 128},
    "one that is too long": {"rule_id": "a" * 129},
    **{f"a limit of {n}": {"limit": n} for n in (0, 9, 10, 2**53 - 1, 2**53, 10**16)},
    **{f"{n} percent": {"enforce_percent": n} for n in (0, 99, 100, 101, 999)},
    **{f"{n} seconds": {"window_size_seconds": n} for n in (0, 1, 31_622_400, 31_622_401)},
    **{f"priority {n}": {"priority": n} for n in (-1, 0, 999_999, 1_000_000, 1_000_001)},
    **{f"{n} methods": {"match": {"methods": ["GET"] * n}} for n in (0, 64, 65)},
    **{f"{n} parts": {"identifier": ["host"] * n} for n in (0, 1, 8, 9)},
}


@pytest.mark.parametrize("rule", EDGES.values(), ids=EDGES)
def test_at_its_edges_a_glance_lets_nothing_pass_that_a_check_would_note(
    rule: dict[str, Any],
) -> None:
    assert not (is_plain(text_of(rule)) and faults_of(rule))


def test_of_plain_rules_what_values_mean_is_looked_at_all_the_same() -> None:
    rule = {"rule_id": "a", "identifier": "user", "rate": "5/month", "match": {"path_pattern": "a"}}
    assert is_plain(text_of(rule))
    with pytest.raises(RulesError) as refused:
        parse_rules(json.dumps(rule))
    assert [problem.path for problem in refused.value.problems] == [
        "match.path_pattern",
        "identifier",
        "rate",
    ]
