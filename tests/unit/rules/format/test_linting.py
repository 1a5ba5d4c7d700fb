"""What deserves a second look, and what does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.rules.format.parse import parse_rules

EVERYONE = {
    "rule_id": "z-everyone",
    "identifier": "ip_address",
    "rate": "100/minute",
    "priority": 999,
}


def warnings_of(*rules: dict[str, Any], catch_all: bool = True) -> list[str]:
    """The warnings about these rules and, to keep it quiet, one for everybody."""
    written = [
        {"rule_id": f"rule-{i}", "identifier": "user_id", "rate": "1/second", "priority": i, **rule}
        for i, rule in enumerate(rules)
    ]
    text = json.dumps([*written, *([EVERYONE] if catch_all else [])], indent=1)
    return [str(warning) for warning in parse_rules(text, "x.json").warnings]


def on(pattern: str | None = None, **match: Any) -> dict[str, Any]:
    return {"match": {"path_pattern": pattern, **match}}


def test_good_rules_have_no_warnings() -> None:
    assert warnings_of(on("/a"), on("/b", requires_authentication=True)) == []


def test_no_rule_for_every_request() -> None:
    said = "x.json: no rule matches every request; add a rule without `match`, so that every request has a limit"
    assert warnings_of(on("/a"), catch_all=False) == [said]
    assert warnings_of(on("/**", methods=["GET"]), catch_all=False) == [said]
    assert warnings_of(on("/**"), catch_all=False) == []
    assert warnings_of(
        {**EVERYONE, "rule_id": "off", "enabled": False}, on("/a"), catch_all=False
    ) == [said]


@pytest.mark.parametrize(
    "less", [{"shadow": True}, {"enforce_percent": 99}, {"on_missing": "skip"}]
)
def test_a_rule_that_may_limit_no_request_is_not_a_catch_all(less: dict[str, Any]) -> None:
    said = warnings_of(
        {**EVERYONE, **less}, on("/a", requires_authentication=True), catch_all=False
    )
    assert len(said) == 2
    assert "requires authentication, and no other rule covers its path" in said[0]
    assert "no rule matches every request" in said[1]


def test_no_rule_at_all() -> None:
    said = "x.json: no rule is enabled; no request is limited"
    assert warnings_of(catch_all=False) == [said]
    assert warnings_of({"enabled": False}, catch_all=False) == [said]


def test_the_same_match_and_identifier_twice() -> None:
    same = on("/a", methods=["GET"])
    (said,) = warnings_of(same, same)
    assert said == (
        "x.json:19: [1].match: matches the same requests and has the same identifier as 'rule-0'; "
        "combine them into one rule with several `limits`"
    )
    assert warnings_of(same, {**same, "identifier": "global"}) == []
    assert warnings_of(same, {**same, "enabled": False}) == []


@pytest.mark.parametrize(
    "first, later, is_covered",
    [
        (on("/a/**"), on("/a"), True),
        (on("/a/**"), on("/a/b/{x}/*"), True),
        (on("/a/*"), on("/a/b"), True),
        (on("/a/*"), on("/a"), False),
        (on("/a/*"), on("/a/**"), False),
        (on("/a/*"), on("/a/**/b"), True),
        (on("/a/{x}"), on("/a/b"), True),
        (on("/a/{x}"), on("/a/*"), False),
        (on("/a/b"), on("/a/{x}"), False),
        (on("/*/b"), on("/a/b"), True),
        (on("/a"), on(), False),
        (on(), on("/a"), True),
        (on("/**"), on("/a"), True),
        (on(methods=["GET", "POST"]), on("/a", methods=["GET"]), True),
        (on(methods=["GET"]), on("/a"), False),
        (on(requires_authentication=True), on("/a"), False),
        (on(host="a.example"), on(host=["a.example", "b.example"]), False),
        (on(host=["a.example", "b.example"]), on(host="a.example"), True),
        (on(ip_subnet="10.0.0.0/8"), on(ip_subnet="10.0.0.0/8", methods=["GET"]), True),
        (on(headers={"x": "1"}), on(headers={"x": "1", "y": "2"}), True),
        (on(headers={"x": "1"}), on(headers={"x": "2"}), False),
        (on(descriptors={"k": "v"}), on("/a", descriptors={"k": "v"}), True),
    ],
)
def test_a_rule_that_is_never_reached(
    first: dict[str, Any], later: dict[str, Any], *, is_covered: bool
) -> None:
    said = warnings_of({**first, "stop": True}, {**later, "identifier": "global"})
    message = "never applies: 'rule-0' comes first and stops"
    assert any("[1].priority" in line and message in line for line in said) == is_covered


def test_a_rule_before_the_stop_or_without_one_is_reached() -> None:
    assert warnings_of(on("/a"), {**on("/a"), "identifier": "global", "stop": True}) == []
    assert warnings_of({**on("/a"), "stop": True, "enabled": False}, on("/a")) == []


@pytest.mark.parametrize(
    "more",
    [
        {"shadow": True},
        {"enforce_percent": 50},
        {"on_missing": "skip"},
        {"exempt": {"values": ["203.0.113.9"]}},
    ],
    ids=str,
)
def test_a_rule_that_is_not_always_enforced_does_not_always_stop(more: dict[str, Any]) -> None:
    first = {**on("/a"), "stop": True, **more}
    assert warnings_of(first, {**on("/a"), "identifier": "global"}) == []


def test_a_rule_for_authenticated_requests_without_one_for_others() -> None:
    said = warnings_of(on("/a/*", requires_authentication=True), catch_all=False)
    assert said[0] == (
        "x.json:9: [0].match.requires_authentication: requires authentication, and no other rule "
        "covers its path for anonymous requests; add a rule for requests without a user id"
    )
    covered = warnings_of(on("/a/*", requires_authentication=True), on("/a/**"), catch_all=False)
    assert not any("requires authentication" in line for line in covered)


def test_linting_ten_thousand_rules_that_stop_is_fast() -> None:
    """Every pattern begins with a star, so that each would have to be compared with all before it."""
    rules = [{**on(f"/*/{i}"), "stop": True, "priority": 1} for i in range(9_999)]
    assert warnings_of(*rules) == []
