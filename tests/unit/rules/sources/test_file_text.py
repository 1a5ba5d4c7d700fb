"""Changing one rule in a file that a person wrote: what stays, and what cannot."""

import json

import pytest
from hypothesis import given, strategies as st

from headgate.rules.format.yaml_reader import read_yaml
from headgate.rules.pacing import no_pause
from headgate.rules.sources.file_text import changed_text, dump, rules_of

RULES = """\
# All of our rules.
rules:
  # People who log in.
  - rule_id: login  # by address
    identifier: ip_address
    rate: 10/minute
    match: {path_pattern: /login}

  # Everybody.
  - rule_id: all
    identifier: ip_address
    rate: 100/minute
    description: |
      Two lines,
      # the second is no comment

# The end.
"""
SEARCH = {"rule_id": "search", "identifier": "user_id", "rate": "5/second burst 3"}


def lines_of(text: str) -> list[str]:
    return text.splitlines()


def test_only_the_lines_of_a_changed_rule_are_touched() -> None:
    login = {"rule_id": "login", "identifier": "ip_address", "rate": "20/minute"}
    text, kept = changed_text(RULES, {"login": login}, "rules.yaml")
    assert kept
    assert lines_of(text) == [
        *lines_of(RULES)[:3],
        "  - rule_id: login",
        "    identifier: ip_address",
        "    rate: 20/minute",
        *lines_of(RULES)[7:],
    ]


def test_a_rule_that_goes_takes_only_its_own_lines() -> None:
    text, kept = changed_text(RULES, {"login": None}, "rules.yaml")
    assert kept
    assert lines_of(text) == [*lines_of(RULES)[:3], *lines_of(RULES)[7:]]


def test_a_new_rule_comes_after_the_last_one() -> None:
    text, kept = changed_text(RULES, {"search": SEARCH}, "rules.yaml")
    assert kept
    new = ["  - rule_id: search", "    identifier: user_id", "    rate: 5/second burst 3"]
    assert lines_of(text) == [*lines_of(RULES)[:15], *new, *lines_of(RULES)[15:]]


def test_the_last_rule_can_go_while_another_comes() -> None:
    text, kept = changed_text(RULES, {"all": None, "search": SEARCH}, "rules.yaml")
    assert kept
    assert list(rules_of(text, "rules.yaml")) == ["login", "search"]
    assert "# Everybody." in text
    assert "# The end." in text


@pytest.mark.parametrize(
    "text",
    [
        "- rule_id: login\n  identifier: ip_address\n  rate: 1/s\n",
        "-\n  rule_id: login\n  identifier: ip_address\n  rate: 1/s",
        "---\nrules:\n- identifier: ip_address\n  rate: 1/s\n  rule_id: 'login'\n...\n",
        "rules:\n    -   rule_id: login\n        identifier: ip_address\n        rate: 1/s\n",
    ],
    ids=["a list", "a dash alone", "markers, no indent", "wide indent"],
)
def test_lists_of_every_layout_keep_their_comments(text: str) -> None:
    commented = text.replace("rate: 1/s", "rate: 1/s  # slow")
    edited, kept = changed_text(commented, {"search": SEARCH}, "rules.yaml")
    assert kept
    assert "# slow" in edited
    assert list(rules_of(edited, "rules.yaml")) == ["login", "search"]


def test_the_defaults_of_a_file_hold_for_what_is_put_in() -> None:
    text = "defaults: {on_missing: skip}  # mine\n" + RULES
    edited, kept = changed_text(text, {"search": SEARCH}, "rules.yaml")
    assert kept
    assert rules_of(edited, "rules.yaml")["search"] == {**SEARCH, "on_missing": "skip"}


@pytest.mark.parametrize(
    "text, name, kept",
    [
        (
            '{"rules": [{"rule_id": "a", "identifier": "ip_address", "rate": "1/s"}]}',
            "r.json",
            True,
        ),
        ('// mine\n[{"rule_id": "a", "identifier": "ip_address", "rate": "1/s"}]', "r.json", False),
        ("rules: [{rule_id: a, identifier: ip_address, rate: 1/s}]  # one line", "r.yaml", False),
        ("rule_id: a\nidentifier: ip_address\nrate: 1/s\n", "r.yaml", True),
    ],
    ids=["json", "json with comments", "yaml in brackets", "a single rule"],
)
def test_a_file_of_another_shape_is_rewritten(text: str, name: str, *, kept: bool) -> None:
    edited, has_kept = changed_text(text, {"search": SEARCH}, name)
    assert has_kept is kept
    assert rules_of(edited, name) == {**rules_of(text, name), "search": SEARCH}


def test_other_content_of_a_rewritten_file_stays() -> None:
    text = (
        "rules: [{rule_id: a, identifier: ip_address, rate: 1/s}]\n"
        "defaults: {priority: 7}\n"
        "tests:\n  - request: {path: /}\n    rules: [a]\n"
    )
    edited, _ = changed_text(text, {"search": SEARCH}, "rules.yaml")
    value = read_yaml(edited, "rules.yaml", pause=no_pause).value
    assert value["tests"] == [{"request": {"path": "/"}, "rules": ["a"]}]
    assert rules_of(edited, "rules.yaml")["a"]["priority"] == 7


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(codec="ascii", categories=["L"]), min_size=1), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "no", "1"]), json_values, min_size=1))
def test_dumped_values_survive_reading(value: dict[str, object]) -> None:
    """By our own reader, which takes YAML 1.2: `no` is a text there, and `1e3` a number."""
    assert read_yaml(dump(value), "x.yaml", pause=no_pause).value == json.loads(json.dumps(value))


@given(st.text(alphabet="0123456789eox_:.+-naAfFyYsSoOtrul~#' \"", max_size=8))
def test_texts_that_look_like_something_else_are_read_as_texts(text: str) -> None:
    assert read_yaml(dump({"a": text}), "x.yaml", pause=no_pause).value == {"a": text}
