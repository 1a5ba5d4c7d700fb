"""More rules for one request than can be asked in one go: refused where that is certain, and only there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.rules.format.problems import RulesError
from headgate.rules.model import RuleSet

LAST: dict[str, Any] = {"rule_id": "last", "rate": "1/minute", "priority": 100}


def rules(many: int, *others: dict[str, Any], **fields: Any) -> str:
    """So many rules of priority 1 with these fields, one limit each, and others."""
    written = [{"rule_id": f"r{i:03}", "rate": "9/s", "priority": 1, **fields} for i in range(many)]
    return json.dumps({"defaults": {"identifier": "ip_address"}, "rules": [*written, *others]})


@pytest.mark.parametrize(
    "text, many",
    [
        (rules(128, LAST), 129),
        (rules(128, {**LAST, "match": {"path_pattern": "/a", "methods": ["GET"]}}), 129),
        (rules(128, LAST, match={"path_pattern": "/a"}), 129),
        (rules(128, LAST, match={"methods": ["GET"]}), 129),
        (
            rules(
                64, LAST, rate="9/s; 99/minute", match={"path_pattern": "/a", "methods": ["GET"]}
            ),
            65,
        ),
        (rules(128, {**LAST, "stop": True}), 129),
    ],
)
def test_rules_that_certainly_apply_together_and_are_too_many_are_refused(
    text: str, many: int
) -> None:
    with pytest.raises(RulesError) as refused:
        RuleSet.parse(text, "rules.json")
    (problem,) = refused.value.problems
    assert problem.path.startswith(f"rules[{many - 1}]")
    assert problem.message == (
        f"is one too many: one request may have at most 128 limits, and {many} rules apply together "
        "(r000, r001, r002, …)"
    )


@pytest.mark.parametrize(
    "text",
    [
        rules(127, LAST),
        rules(128, LAST, shadow=True),
        rules(128, LAST, enabled=False),
        rules(128, LAST, enforce_percent=99),
        rules(128, LAST, exempt=["192.0.2.1"]),
        rules(128, LAST, on_missing="skip"),
        rules(128, LAST, match={"host": "a.example"}),
        rules(128, {**LAST, "match": {"path_pattern": "/b"}}, match={"path_pattern": "/a"}),
        rules(128, {**LAST, "match": {"methods": ["PUT"]}}, match={"methods": ["GET"]}),
        rules(128, LAST, stop=True),
        rules(
            128,
            LAST,
            {"rule_id": "x", "rate": "1/s", "stop": True, "match": {"host": "b"}, "priority": 9},
        ),
        rules(128, LAST, rate="9/s; 9/minute", overrides={"192.0.2.1": "1/s"}, match={"host": "c"}),
    ],
)
def test_rules_that_may_never_meet_are_not(text: str) -> None:
    assert len(RuleSet.parse(text, "rules.json")) >= 128
