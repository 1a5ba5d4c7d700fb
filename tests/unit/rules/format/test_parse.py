"""Rules from documents: what every field becomes, what defaults fill in, and what a set is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate.algorithms import (
    Adaptive,
    Calendar,
    CalendarWindow,
    ExponentialBackoff,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from headgate.errors import UsageError
from headgate.rules.format.building.networks import network_of
from headgate.rules.format.error_collector import MAX_ERRORS
from headgate.rules.format.fields import MAX_RULES, RULE
from headgate.rules.format.parse import parse_documents, parse_rule_document, parse_rules
from headgate.rules.format.problems import RulesError
from headgate.rules.model import (
    Cost,
    Exempt,
    HeaderTest,
    Identifier,
    IdentifierPart,
    Match,
    Rule,
    RuleSet,
)

GOOD = Path(__file__).parent / "good"
SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US


def one(**fields: Any) -> Rule:
    """A rule with these fields."""
    written = {"rule_id": "a", "identifier": "ip_address", **fields}
    if not {"rate", "limit", "limits"} & set(fields):
        written["rate"] = "100/minute"
    return parse_rule_document(written)


def parse_good(name: str) -> dict[str, Rule]:
    path = GOOD / name
    return {rule.rule_id: rule for rule in parse_rules(path.read_bytes(), path.name).rules}


def test_json_as_other_systems_write_it_loads_unchanged() -> None:
    (rule,) = parse_good("one-rule.json").values()
    written = dict(rule.document)
    assert rule == Rule(
        rule_id="api-per-user",
        description="see https://example.com//not-a-comment",
        identifier=Identifier(parts=(IdentifierPart(kind="user_id"),)),
        limits=(TokenBucket(100, MINUTE_US),),
        match=Match(
            path_pattern="/api/v1/*",
            methods=frozenset({"GET", "POST"}),
            requires_authentication=True,
            headers=(HeaderTest(name="x-client-version"),),
            ip_ranges=(network_of("10.0.0.0/8"),),
        ),
        priority=10,
        document=written,
    )
    assert written["identifier_type"] == "user_id"


def test_bytes_that_are_not_text_are_refused() -> None:
    number: Any = 5
    with pytest.raises(UsageError, match="rules must be a string or bytes, not 5"):
        RuleSet.parse(number)


def test_one_rule_a_list_and_a_file_are_the_same_set() -> None:
    rule = json.loads((GOOD / "list-of-rules.json").read_text())[0]
    sets = [
        parse_rules(json.dumps(document)).rules for document in (rule, [rule], {"rules": [rule]})
    ]
    assert sets[0] == sets[1] == sets[2]


def test_other_names_of_algorithms_and_empty_conditions_are_understood() -> None:
    rules = parse_good("list-of-rules.json")
    assert rules["a"].limits == (SlidingWindow(5, SECOND_US // 2),)
    assert rules["b"].limits == (FixedWindow(5, SECOND_US),)
    assert rules["b"].match == Match()


def test_defaults_fill_in_what_a_rule_leaves_out_and_does_not_contradict() -> None:
    rules = parse_good("every-field.yaml")
    assert rules["filled-in"].limits == (TokenBucket(5, MINUTE_US, 7),)
    assert rules["rate-wins-over-defaults"].limits == (TokenBucket(10, MINUTE_US),)
    assert rules["filled-in"].document == {
        "rule_id": "filled-in",
        "limit": 5,
        "identifier": "ip_address",
        "window_size_seconds": 60,
        "burst": 7,
        "algorithm": "token_bucket",
    }


def test_a_rule_with_its_defaults_filled_in_is_the_same_rule_by_itself() -> None:
    for rule in parse_good("every-field.yaml").values():
        assert parse_rule_document(rule.document) == rule


def test_every_field_is_parsed() -> None:
    rule = parse_good("every-field.yaml")["with-everything"]
    minute = TokenBucket(100, MINUTE_US, 20)
    assert rule == Rule(
        rule_id="with-everything",
        description="a text with \x1b[31mcolour\x1b[0m, <b>tags</b> and\nlines",
        identifier=Identifier(
            parts=(
                IdentifierPart(kind="path", name="tenant"),
                IdentifierPart(kind="text", name=":"),
                IdentifierPart(kind="header", name="x-team"),
            ),
            joined=True,
        ),
        limits=(minute,),
        cost=Cost(header="x-cost", default=2, maximum=20),
        match=Match(
            path_pattern="/tenants/{tenant}/**",
            methods=frozenset({"POST"}),
            hosts=("example.com", "*.example.org"),
            headers=(
                HeaderTest(name="x-team"),
                HeaderTest(name="x-beta", present=False),
                HeaderTest(name="x-plan", exact="gold"),
                HeaderTest(name="x-version", prefix="2."),
                HeaderTest(name="x-kind", exact="export"),
            ),
            ip_ranges=tuple(
                network_of(text) for text in ("10.0.0.0/8", "2001:db8::/32", "192.0.2.7/32")
            ),
            requires_authentication=True,
            descriptors=(("tenant", "acme"), ("plan", None)),
        ),
        priority=-5,
        stop=True,
        on_missing="deny",
        on_error="closed",
        shadow=True,
        enforce_percent=10,
        overrides={
            "acme:blue": (TokenBucket(1000, MINUTE_US, 50),),
            "42": (TokenBucket(100, MINUTE_US, 99),),
            "no": (
                TokenBucket(5, SECOND_US),
                CalendarWindow(50, calendar=Calendar("day")),
            ),
        },
        exempt=Exempt(
            values=frozenset({"acme:root"}),
            matches=(
                Match(ip_ranges=(network_of("127.0.0.1"),)),
                Match(headers=(HeaderTest(name="x-probe"),)),
            ),
        ),
        enabled=False,
        labels={"team": "payments"},
        document=rule.document,
    )


def test_several_identifiers_and_limits() -> None:
    rule = parse_good("every-field.yaml")["several"]
    assert rule.identifier == Identifier(
        parts=(
            IdentifierPart(kind="user_id"),
            IdentifierPart(kind="method"),
            IdentifierPart(kind="path", name="id"),
            IdentifierPart(kind="descriptor", name="plan"),
        )
    )
    assert rule.match.descriptors == (("plan", None), ("tenant", ""))
    assert rule.limits == (
        SlidingWindow(1, SECOND_US),
        SlidingWindow(100, HOUR_US),
        CalendarWindow(1000, calendar=Calendar("month", "Europe/Berlin", 15)),
        SlidingLog(10, MINUTE_US),
    )
    assert rule.exempt == Exempt(values=frozenset({"root"}))


@pytest.mark.parametrize(
    "fields, limits",
    [
        ({"rate": "100/minute"}, (SlidingWindow(100, MINUTE_US),)),
        ({"rate": "100/minute burst 20"}, (TokenBucket(100, MINUTE_US, 20),)),
        ({"rate": "100/minute", "burst": 20}, (TokenBucket(100, MINUTE_US, 20),)),
        (
            {"rate": "1/second; 100/hour"},
            (SlidingWindow(1, SECOND_US), SlidingWindow(100, HOUR_US)),
        ),
        ({"rate": "9/calendar day"}, (CalendarWindow(9, calendar=Calendar("day")),)),
        ({"limit": 0, "window_size_seconds": 1}, (SlidingWindow(0, SECOND_US),)),
        ({"limit": 9, "calendar": "week"}, (CalendarWindow(9, calendar=Calendar("week")),)),
        ({"rate": "9/minute", "algorithm": "adaptive"}, (Adaptive(9, MINUTE_US),)),
        (
            {"rate": "9/minute", "algorithm": "exponential_backoff"},
            (ExponentialBackoff(9, MINUTE_US),),
        ),
    ],
)
def test_how_much(fields: dict[str, Any], limits: tuple[object, ...]) -> None:
    assert one(**fields).limits == limits


@pytest.mark.parametrize("field", RULE.fields, ids=lambda field: field.name)
def test_the_example_of_every_field_works(field: Any) -> None:
    fields = {"identifier": "user_id", field.name: field.example}
    if field.name == "limit":
        fields["window_size_seconds"] = 60
    if field.name in {"window_size_seconds", "calendar"}:
        fields["limit"] = 100
    assert one(**fields).document[field.name] == field.example


@pytest.mark.parametrize(
    "written, identifier",
    [
        ("ip_address", Identifier(parts=(IdentifierPart(kind="ip_address"),))),
        ("ip_address/48", Identifier(parts=(IdentifierPart(kind="ip_address", name="48"),))),
        ("ip_address/64", Identifier(parts=(IdentifierPart(kind="ip_address"),))),
        (
            "{ip_address/56}:{path}",
            Identifier(
                parts=(
                    IdentifierPart(kind="ip_address", name="56"),
                    IdentifierPart(kind="text", name=":"),
                    IdentifierPart(kind="path"),
                ),
                joined=True,
            ),
        ),
        ("header:X-Team", Identifier(parts=(IdentifierPart(kind="header", name="x-team"),))),
        (
            "descriptor:Tenant",
            Identifier(parts=(IdentifierPart(kind="descriptor", name="Tenant"),)),
        ),
        ("{user_id}", Identifier(parts=(IdentifierPart(kind="user_id"),))),
        (["global"], Identifier(parts=(IdentifierPart(kind="global"),))),
        (
            "u={user_id}",
            Identifier(
                parts=(IdentifierPart(kind="text", name="u="), IdentifierPart(kind="user_id")),
                joined=True,
            ),
        ),
    ],
)
def test_identifiers_of_every_form(written: Any, identifier: Identifier) -> None:
    assert one(identifier=written).identifier == identifier


def test_null_means_left_out_also_against_the_defaults() -> None:
    text = (
        "defaults: {burst: 5, on_error: open}\nrules:\n- {rule_id: a, identifier: ip_address, limit: 9,"
        " window_size_seconds: 60, burst: null, on_error: null}"
    )
    (rule,) = parse_rules(text, "x.yaml").rules
    assert (rule.limits, rule.on_error) == ((SlidingWindow(9, MINUTE_US),), None)


def test_a_set_is_in_order_of_priority_then_name_whatever_was_written_first() -> None:
    rules = [
        {"rule_id": rule_id, "identifier": "global", "rate": "1/second", "priority": priority}
        for rule_id, priority in [("c", 5), ("b", 5), ("a", 9), ("d", -1)]
    ]
    parsed = parse_rules(json.dumps(rules))
    assert [rule.rule_id for rule in parsed.rules] == ["d", "b", "c", "a"]


def test_equal_sets_have_equal_versions_whatever_they_were_read_from() -> None:
    path = GOOD / "every-field.yaml"
    rules = parse_rules(path.read_bytes(), path.name).rules
    nodes = [(rule.rule_id, json.dumps(rule.document).encode()) for rule in rules]
    assert parse_documents(reversed(nodes)).rules == rules
    assert len(rules.version) == 16
    changed = [(nodes[0][0], nodes[0][1].replace(b"5", b"6")), *nodes[1:]]
    assert parse_documents(changed).rules.version != rules.version


def test_an_unchanged_rule_is_the_same_object_and_a_changed_one_is_not() -> None:
    text = (
        '{"defaults": {"identifier": "ip_address"}, "rules": [{"rule_id": "a", "rate": "%d/s"},'
        ' {"rule_id": "b", "limit": %s, "window_size_seconds": 1}]}'
    )
    before = parse_rules(text % (1, "1")).rules
    after = parse_rules(text % (2, "1")).rules
    assert after["b"] is before["b"]
    assert after["a"].limits == (SlidingWindow(2, SECOND_US),)
    with pytest.raises(RulesError, match="must be a whole number, not true"):
        parse_rules(text % (1, "true"))
    with pytest.raises(RulesError, match=r"must be a whole number, not 1\.0"):
        parse_rules(text % (1, "1.0"))


def test_a_duplicate_of_a_known_rule_is_still_an_error() -> None:
    text = '{"rule_id": "a", "identifier": "ip_address", "rate": "1/s"}'
    kept = parse_rules(text)
    with pytest.raises(RulesError, match="the id 'a' is already in one"):
        parse_documents([("one", text), ("two", text)])
    assert len(kept.rules) == 1


@pytest.mark.parametrize("methods", [("GET",), {"GET"}], ids=str)
def test_plain_values_are_limited_to_json(methods: Any) -> None:
    kept = one(match={"methods": ["GET"]})
    with pytest.raises(RulesError, match="must be a string or a list"):
        one(match={"methods": methods})
    assert kept.match.methods == {"GET"}


def test_an_id_in_two_documents_is_an_error_that_names_both() -> None:
    rule = b'{"rule_id": "a", "identifier": "global", "rate": "1/second"}'
    with pytest.raises(RulesError, match=r"^two:1: rule_id: the id 'a' is already in one:1; give"):
        parse_documents([("one", rule), ("two", rule)])


def test_faults_of_all_documents_come_together() -> None:
    with pytest.raises(RulesError) as refused:
        parse_documents([("one", b"{"), ("two", b'{"rule_id": 5}'), ("three", b"\xff")])
    assert [problem.file for problem in refused.value.problems] == [
        *["one", "two", "two", "two", "three"]
    ]


def test_half_a_character_in_a_value_hides_no_other_fault() -> None:
    written = {"rule_id": "a", "identifier": "api_key", "rate": "5/s", "overrides": {"\ud800": 5}}
    with pytest.raises(RulesError) as refused:
        parse_rule_document(written)
    assert [problem.message for problem in refused.value.problems] == [
        "'\\ud800' has half a surrogate pair",
        "must be a string, a mapping or a list, not 5",
    ]


def test_all_faults_of_a_file_come_at_once_in_the_order_of_lines() -> None:
    text = """
rules:
  - rule_id: a
    identifier: usr_id
    rate: often
    shadow: maybe
    colour: blue
    match: {ip_subnet: [10.0.0.1/8, 10.0.0.0/33]}
  - rule_id: a
    identifier: "{team}"
    limit: 5
    cost: 9
"""
    with pytest.raises(RulesError) as refused:
        parse_rules(text, "x.yaml")
    assert [(problem.line, problem.path) for problem in refused.value.problems] == [
        (4, "rules[0].identifier"),
        (5, "rules[0].rate"),
        (6, "rules[0].shadow"),
        (7, "rules[0].colour"),
        (8, "rules[0].match.ip_subnet[0]"),
        (8, "rules[0].match.ip_subnet[1]"),
        (9, "rules[1].rule_id"),
        (10, "rules[1].identifier"),
        (11, "rules[1].limit"),
    ]


@pytest.mark.parametrize(
    "fault",
    [
        {"match": "everything"},
        {"match": {"headers": 5}},
        {"match": {"path_pattern": 5}},
        {"identifier": {"user_id": 1}},
        {"overrides": ["5/minute"]},
        {"cost": {"header": 5}},
        {"exempt": 7},
    ],
    ids=str,
)
def test_an_error_beyond_the_reported_ones_is_still_an_error(fault: dict[str, Any]) -> None:
    rules = [
        {"rule_id": f"r{i}", "identifier": "ip_address", "rate": "1/s", **fault}
        for i in range(MAX_ERRORS + 1)
    ]
    with pytest.raises(RulesError) as caught:
        parse_rules(json.dumps(rules))
    assert len(caught.value.problems) == MAX_ERRORS


def test_ten_thousand_rules_are_a_set_and_one_more_is_not() -> None:
    rules = [
        {
            "rule_id": f"r{i}",
            "identifier": "global",
            "rate": "1/second",
            "match": {"path_pattern": f"/{i}"},
        }
        for i in range(MAX_RULES + 1)
    ]
    assert len(parse_rules(json.dumps(rules[1:])).rules) == MAX_RULES
    with pytest.raises(RulesError, match="this is rule 10001, but a set may have at most 10000"):
        parse_rules(json.dumps(rules))


def test_a_million_rules_end_at_the_first_that_is_too_many() -> None:
    with pytest.raises(RulesError) as refused:
        parse_rules(json.dumps([None] * 1_000_000))
    assert len(refused.value.problems) <= 1_001


def test_cases_are_handed_on_with_their_places() -> None:
    text = "rules: []\ntests:\n  - {request: {path: /}}\n  - 5\n"
    cases = parse_rules(text, "x.yaml").cases
    assert [(case.file, case.line, case.path, case.value) for case in cases] == [
        ("x.yaml", 3, "tests[0]", {"request": {"path": "/"}}),
        ("x.yaml", 4, "tests[1]", 5),
    ]


def test_without_pyyaml_json_works_and_yaml_names_the_remedy() -> None:
    program = """
import sys
sys.modules["yaml"] = None
from headgate.errors import ConfigError
from headgate.rules.format.parse import parse_rules
assert len(parse_rules('[]').rules) == 0
try:
    parse_rules("rules: []", "x.yaml")
except ConfigError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        "YAML needs PyYAML: pip install 'headgate[rules]', or write the rules as JSON\n"
    )


def test_without_libyaml_the_same_is_read() -> None:
    program = f"""
import sys
sys.modules["yaml._yaml"] = None
from pathlib import Path
from headgate.rules.format.parse import parse_rules
path = Path({str(GOOD / "every-field.yaml")!r})
print(parse_rules(path.read_bytes(), path.name).rules.version)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    path = GOOD / "every-field.yaml"
    assert done.stdout.strip() == parse_rules(path.read_bytes(), path.name).rules.version
