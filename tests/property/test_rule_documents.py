"""Rules made of anything: they work, or everything that is wrong with them is said in words."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, strategies as st

from headgate.rules.format.fields import AMOUNT, CALENDAR, COST, EXEMPT, FILE, RULE
from headgate.rules.format.match_fields import MATCH
from headgate.rules.format.parse import parse_documents, parse_rule_document, parse_rules
from headgate.rules.format.problems import Problem, RulesError

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 200)
    | st.sampled_from([2**53, 10**30, 0.5, -1e300])
    | st.text(max_size=8)
    | st.sampled_from(
        [
            "*",
            "/**",
            "{x}",
            "/{x}/{x}",
            "1/s; 1/s",
            "5/month",
            "10.0.0.1/8",
            "header:",
            "user_id",
            "concurrency",
        ]
    )
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def sections(*known: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings with the fields of a section, each as in its example, or anything."""
    fields = [field for one in known for field in getattr(one, "fields", one)]
    return st.fixed_dictionaries(
        {},
        optional={
            name: st.just(field.example) | ANYTHING
            for field in fields
            for name in (field.name, *field.aliases)
        },
    )


RULES = st.builds(
    lambda base, more: {**base, **more},
    st.sampled_from(
        [{}, {"rule_id": "a", "identifier": "ip_address", "rate": "9/minute"}, {"rule_id": "b"}]
    ),
    sections(RULE)
    | st.fixed_dictionaries({"match": sections(MATCH)}, optional={"cost": sections(COST)}),
)
MORE = st.fixed_dictionaries(
    {},
    optional={
        "exempt": sections(EXEMPT),
        "calendar": sections(CALENDAR),
        "overrides": st.dictionaries(st.text(max_size=3), sections(AMOUNT) | ANYTHING, max_size=2),
        "limits": st.lists(sections(AMOUNT) | ANYTHING, max_size=3),
    },
)


def problems_of(document: Any, name: str = "x.json") -> tuple[Problem, ...]:
    """What is wrong with a document; nothing if it can be used."""
    try:
        parsed = parse_rules(json.dumps(document), name)
    except RulesError as error:
        return error.problems
    assert all(parse_rule_document(rule.document) == rule for rule in parsed.rules)
    assert (
        parse_documents((rule.rule_id, json.dumps(rule.document)) for rule in parsed.rules).rules
        == parsed.rules
    )
    assert all(warning.message and warning.remedy for warning in parsed.warnings)
    return ()


@given(rule=RULES, more=MORE)
def test_a_rule_of_anything_works_or_is_refused_in_words(rule: Any, more: Any) -> None:
    for problem in problems_of({**rule, **more}):
        assert problem.message
        assert problem.remedy
        assert problem.line == 1
        assert "\n" not in problem.path


@given(
    document=sections(FILE), rules=st.lists(RULES, max_size=3), defaults=sections(RULE) | ANYTHING
)
def test_a_file_of_anything_works_or_is_refused_in_words(
    document: Any, rules: Any, defaults: Any
) -> None:
    document = {**document, "rules": rules, "defaults": defaults}
    in_json = problems_of(document)
    assert all(problem.message and problem.remedy for problem in in_json)
    if "\\ud" not in json.dumps(document):
        in_yaml = problems_of(document, "x.yaml")
        assert [str(problem).replace("x.yaml", "x.json") for problem in in_yaml] == [
            *map(str, in_json)
        ]
