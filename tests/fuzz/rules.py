"""Rules: any document works as a whole, or everything that is wrong with it is said in words."""

from __future__ import annotations

import json
from typing import Final

from headgate.errors import UsageError
from headgate.rules.format.parse import parse_rule_document, parse_rules
from headgate.rules.format.problems import RulesError
from headgate.rules.matching.rulebook import Rulebook
from headgate.rules.request import Request

NAMES: Final = ("x", "x.json", "x.yaml")
"""What a document is called says how it is read; one without an ending is looked at."""
REQUESTS: Final = (
    Request("POST", "/login", ip="203.0.113.9"),
    Request("GET", "/a/b/../c", user_id="ann", headers={"X-Team": "blue"}, cost=2),
    Request("GET", "/%zz", ip="2001:db8::1", host="Example.COM:80", descriptors=(("a", "b"),)),
)


def check(data: bytes) -> None:
    """Only `RulesError` escapes; rules that are taken are read the same from their own output, and decide."""
    for name in NAMES:
        _check_as(name, data)


def _check_as(name: str, data: bytes) -> None:
    try:
        parsed = parse_rules(data, name)
    except RulesError as error:
        assert error.problems  # noqa: PT017
        for problem in error.problems:
            assert problem.message
            assert problem.remedy
            assert "\n" not in problem.path
        return
    for rule in parsed.rules:
        assert parse_rule_document(rule.document) == rule, rule.rule_id
    if parsed.rules.rules:
        again = parse_rules(json.dumps([rule.document for rule in parsed.rules]), "again.json")
        assert again.rules == parsed.rules
    book = Rulebook(parsed.rules)
    for request in REQUESTS:
        try:
            charges = book.charges(request)
        except UsageError:
            continue
        assert {charge.rule for charge in charges} <= {*book.by_id, None}
