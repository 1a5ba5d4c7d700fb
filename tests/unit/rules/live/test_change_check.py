"""The guard: what it lets pass and what it objects to."""

import json
import pickle

import pytest

from headgate.rules.format.parse import parse_documents
from headgate.rules.live.change_check import ChangeRefused, difference, objections
from headgate.rules.model import RuleSet


def rules(**rates: str | dict[str, object]) -> RuleSet:
    """Rules by id: a rate, or some fields."""
    documents = []
    for rule_id, given in rates.items():
        fields = {"rate": given} if isinstance(given, str) else given
        documents.append({"rule_id": rule_id, "identifier": "ip_address", **fields})
    return parse_documents([(str(one["rule_id"]), json.dumps(one)) for one in documents]).rules


def fixed(rate: str) -> RuleSet:
    """A rule `a` that may have the largest numbers there are."""
    return rules(a={"rate": rate, "algorithm": "fixed_window"})


def overriding(override: str, rate: str = "10/minute") -> RuleSet:
    """A rule `a` with other limits for one value."""
    return rules(a={"rate": rate, "overrides": {"192.0.2.1": override}})


def exempting(*matches: dict[str, object], path: str | None = None) -> RuleSet:
    """A rule `a` that leaves these requests alone."""
    match = {"path_pattern": path}
    return rules(a={"rate": "10/minute", "match": match, "exempt": {"match": list(matches)}})


ONE = rules(a="10/minute")
FOUR = rules(a="10/minute", b="10/minute", c="10/minute", d="10/minute")


@pytest.mark.parametrize(
    "old, new, objection",
    [
        (None, rules(a="1/s"), None),
        (None, rules(), "no enabled rule is left"),
        (FOUR, rules(), "no enabled rule is left"),
        (
            FOUR,
            rules(a={"rate": "1/s", "enabled": False}),
            "no enabled rule is left",
        ),
        (FOUR, rules(a="10/minute", b="10/minute"), None),
        (FOUR, rules(a="10/minute", x="1/s", y="1/s"), r"3 of 4 rules would be gone \(b, c, d\)"),
        (
            FOUR,
            rules(a="10/minute", **{name: {"rate": "1/s", "enabled": False} for name in "bcd"}),
            r"3 of 4 rules would be gone \(b, c, d\)",
        ),
        (
            FOUR,
            rules(
                a="10/minute",
                b="10/minute",
                c={"rate": "10/minute", "shadow": True},
                d={"rate": "10/minute", "enforce_percent": 1},
            ),
            None,
        ),
        (
            FOUR,
            rules(
                a={"rate": "10/minute", "enforce_percent": 0},
                **{name: {"rate": "10/minute", "shadow": True} for name in "bcd"},
            ),
            r"4 of 4 rules would be gone \(a, b, c and 1 more\)",
        ),
        (None, rules(a={"rate": "1/s", "shadow": True}), None),
        (rules(a={"rate": "1/s", "shadow": True}), rules(a={"rate": "2/s", "shadow": True}), None),
        (rules(a="1/s"), rules(b="1/s"), r"1 of 1 rules would be gone \(a\)"),
        (rules(a="10/minute"), rules(a="999/minute"), None),
        (rules(a="10/minute"), rules(a="1000/minute"), r"100-fold or more \(a 100-fold\)"),
        (fixed("90000000000000/s"), fixed("9000000000000000/s"), r"\(a 100-fold\)"),
        (fixed("90000000000000/s"), fixed("8999999999999999/s"), None),
        (rules(a="0/minute"), rules(a="1000/minute"), None),
        (rules(a="0/minute; 1/hour"), rules(a="1000/minute; 1/hour"), None),
        (rules(a="1/minute"), rules(a="100/minute; 100000/hour"), r"\(a 100-fold\)"),
        (rules(a="10/minute"), rules(a="1000/second"), r"100-fold or more \(a 6000-fold\)"),
        (rules(a="10/minute"), rules(a="599/hour"), None),
        (rules(a="1/second; 100/hour"), rules(a="99/second; 100/hour"), None),
        (rules(a="1/second; 100/hour"), rules(a="100/second; 100/hour"), r"\(a 100-fold\)"),
        (rules(a="1/second; 100/hour"), rules(a="1000/second"), r"\(a 36000-fold\)"),
        (rules(a="1000/minute"), rules(a="1/minute"), None),
        (rules(a="100/minute burst 20"), rules(a="100/minute burst 1999"), None),
        (rules(a="100/minute burst 20"), rules(a="100/minute burst 2000"), r"\(a 100-fold\)"),
        (rules(a="100/minute"), rules(a="100/minute burst 10000"), r"\(a 100-fold\)"),
        (rules(a="1/s burst 9; 9/hour"), rules(a="1/s burst 999; 9/hour"), None),
        (rules(a="100/minute burst 2000"), rules(a="100/minute burst 20"), None),
        (overriding("10/minute"), overriding("999/minute"), None),
        (overriding("10/minute"), overriding("1000/minute"), r"\(a 100-fold\)"),
        (rules(a="10/minute"), overriding("1000/minute"), r"\(a 100-fold\)"),
        (overriding("1/minute", "100/minute"), rules(a="100/minute"), r"\(a 100-fold\)"),
        (None, overriding("1000/minute"), None),
        (ONE, exempting({"ip_subnet": ["0.0.0.0/0", "::/0"]}), "1 of 1 rules would be gone"),
        (ONE, exempting({"ip_subnet": "0.0.0.0/0"}, {"ip_subnet": "::/0"}), "1 of 1 rules"),
        (ONE, exempting({"ip_subnet": ["0.0.0.0/1", "128.0.0.0/1", "::/0"]}), "1 of 1 rules"),
        (ONE, exempting({"ip_subnet": "0.0.0.0/0"}), None),
        (ONE, exempting({"ip_subnet": ["0.0.0.0/0", "::/0"], "methods": "GET"}), None),
        (ONE, exempting({"path_pattern": "/login"}, path="/login"), "1 of 1 rules"),
        (ONE, exempting({"path_pattern": "/login"}, path="/*"), None),
        (
            rules(a={"rate": "9/s", "identifier": "global"}),
            rules(a={"rate": "9/s", "identifier": "global", "exempt": ["global"]}),
            "1 of 1 rules",
        ),
    ],
)
def test_the_change_check_objects_to_risky_changes(
    old: RuleSet | None, new: RuleSet, objection: str | None
) -> None:
    found = objections(old, new)
    if objection is None:
        assert found == []
    else:
        with pytest.raises(ChangeRefused, match=objection):
            raise ChangeRefused(found)


def test_a_refusal_names_the_remedy_and_can_be_pickled() -> None:
    refused = ChangeRefused(["this", "that"])
    assert str(refused) == "this; that: if that is intended, push them again with --force"
    again = pickle.loads(pickle.dumps(refused))  # noqa: S301
    assert again.objections == ("this", "that")
    refused = ChangeRefused(["this"], "say so")
    assert str(pickle.loads(pickle.dumps(refused))) == str(refused)  # noqa: S301
    assert str(refused) == "this: if that is intended, say so"


def test_a_difference_is_described_in_a_sentence() -> None:
    assert str(difference({}, {})) == "nothing changed"
    found = difference({"a": 1, "b": 1, "c": 1}, {"b": 1, "c": 2, "d": 1})
    assert str(found) == "1 added, 1 removed, 1 changed"
    assert (found.added, found.removed, found.changed) == (("d",), ("a",), ("c",))
