"""Keys: one for each identity, and never one for two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headgate.charge import MAX_KEY_BYTES, require_key
from headgate.rules.matching.explain import explain
from headgate.rules.matching.identity import KeyReader
from headgate.rules.matching.normalized_request import NormalizedRequest
from headgate.rules.model import HeaderTest, Match
from headgate.rules.request import Request
from tests.unit.rules.making import identifier, rule, rule_set

if TYPE_CHECKING:
    from headgate.rules.model import Identifier

IP = "203.0.113.9"
DIGEST = "sha256:7c35c5a1785d20704e44d5de4beb81c1"


def key(by: Identifier, request: Request, **settings: Any) -> str:
    return KeyReader(rule(by=by, **settings))(NormalizedRequest(request)).key


PLAIN = {
    "an address": ("ip_address", Request(ip="::ffff:203.0.113.9"), IP),
    "an IPv6 address by its /64": ("ip_address", Request(ip="2001:db8::7"), "2001:db8::/64"),
    "an address by a wider range": (
        *("ip_address/48", Request(ip="2001:db8:7:9::7"), "2001:db8:7::/48"),
    ),
    "IPv4 is in no wider range": ("ip_address/48", Request(ip=IP), IP),
    "NAT64 is not either": ("ip_address/48", Request(ip="64:ff9b::203.0.113.9"), IP),
    "a user": ("user_id", Request(user_id="42"), "42"),
    "an API key": ("api_key", Request(api_key="k-1"), DIGEST),
    "a header in any case": ("header:x-team", Request(headers={"X-Team": " blue "}), "blue"),
    "a path": ("path", Request(path="/a//b/?x"), "/a/b"),
    "a host": ("host", Request(host="API.example.com.:8443"), "api.example.com"),
    "a host that is an address": ("host", Request(host="[2001:DB8::1]:80"), "[2001:db8::1]"),
    "a method": ("method", Request("post"), "POST"),
    "HEAD is a GET": ("method", Request("HEAD"), "GET"),
    "a descriptor": ("descriptor:plan", Request(descriptors=(("plan", "pro"),)), "pro"),
    "everybody": ("global", Request(), "global"),
}


@pytest.mark.parametrize("by, request_, expected", PLAIN.values(), ids=PLAIN)
def test_one_part_is_its_own_key(by: str, request_: Request, expected: str) -> None:
    assert key(identifier(by), request_) == expected


@pytest.mark.parametrize("name", ["Authorization", "Cookie", "X-API-Key"])
def test_a_header_that_carries_a_secret_is_counted_under_its_digest(name: str) -> None:
    by = identifier(f"header:{name.lower()}")
    assert key(by, Request(headers={name: "k-1"})) == DIGEST
    assert key(by, Request(headers={name: ""}, ip=IP)) == f"~ip={IP}"


def test_no_part_of_a_secret_is_in_a_key_or_a_trace() -> None:
    by = identifier("user_id", "=:", "api_key", joined=True)
    match = Match(headers=(HeaderTest(name="authorization", exact="Bearer s3cret-of-ours"),))
    rules = rule_set(rule("a", by=by), rule("b", match=match))
    headers = {"Authorization": "Bearer s3cret-of-theirs"}
    trace = explain(rules, Request(user_id="7", api_key="s3cret", headers=headers))
    assert trace.steps[0].charge is not None
    assert trace.steps[0].charge.key.startswith("7:sha256:")
    assert "s3cret" not in repr(trace.as_json())


def test_a_segment_of_the_path_can_be_the_identifier() -> None:
    by = identifier("path:tenant")
    assert key(by, Request(path="/t/acme/x"), path="/t/{tenant}/*") == "acme"


def test_several_parts_stand_side_by_side() -> None:
    by = identifier("user_id", "header:x-team")
    assert key(by, Request(user_id="42", headers={"x-team": "blue"})) == "42|blue"


def test_two_lists_never_look_the_same() -> None:
    by = identifier("user_id", "header:x-team")
    pairs = [
        ("a|b", "c"),
        ("a", "b|c"),
        ("a~", "b|c"),
        ("a~|b", "c"),
        ("a", "b~|c"),
        ("~none", "c"),
    ]
    keys = {key(by, Request(user_id=user, headers={"x-team": team})) for user, team in pairs}
    keys.add(key(by, Request(headers={"x-team": "c"}), on_missing="share"))
    assert len(keys) == len(pairs) + 1


def test_a_template_is_one_text() -> None:
    by = identifier("user_id", "=@", "host", joined=True)
    assert key(by, Request(user_id="42", host="a.test")) == "42@a.test"


MISSING = {
    "its address": ("ip_address", Request(ip=IP), "~ip=203.0.113.9"),
    "one key for all without an address": ("ip_address", Request(), "~none"),
    "one key for all": ("share", Request(ip=IP), "~none"),
}


@pytest.mark.parametrize("on_missing, request_, expected", MISSING.values(), ids=MISSING)
def test_who_has_no_identifier_is_counted_for(
    on_missing: str, request_: Request, expected: str
) -> None:
    assert key(identifier("user_id"), request_, on_missing=on_missing) == expected


@pytest.mark.parametrize("name", ["~ip=203.0.113.9", "~none", "203.0.113.9", "~sha256=00", "~"])
@pytest.mark.parametrize("joined", [False, True])
def test_no_value_collides_with_another_identifier(
    name: str,
    joined: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    by = identifier(*(["user_id"] if not joined else ["user_id", "=!"]), joined=joined)
    others = {
        key(by, Request(ip=IP)),
        key(by, Request()),
        key(by, Request(user_id="x" * MAX_KEY_BYTES * 2)),
    }
    assert key(by, Request(user_id=name)) not in others


def test_only_the_missing_part_is_replaced() -> None:
    by = identifier("user_id", "path")
    assert key(by, Request(path="/x", ip=IP)) == "~ip=203.0.113.9|/x"


def test_a_refused_path_is_a_missing_one() -> None:
    assert key(identifier("path"), Request(path="/a%00b", ip=IP)) == "~ip=203.0.113.9"


def test_empty_is_missing() -> None:
    assert key(identifier("user_id"), Request(user_id="", ip=IP)) == "~ip=203.0.113.9"


@pytest.mark.parametrize(
    "user_id",
    [
        "x" * (MAX_KEY_BYTES + 1),
        "é" * (MAX_KEY_BYTES // 2 + 1),
        "half \ud800",
        "x" * 9_000 + "\ud800",
    ],
    ids=["too long", "too many bytes", "no text", "both"],
)
def test_what_an_engine_would_refuse_is_hashed(user_id: str) -> None:
    made = key(identifier("user_id"), Request(user_id=user_id))
    assert made.startswith("~sha256=")
    require_key(made)
    assert made != key(identifier("user_id"), Request(user_id=user_id + "!"))


@pytest.mark.parametrize("user_id", ["x" * MAX_KEY_BYTES, "é" * (MAX_KEY_BYTES // 2)])
def test_the_longest_key_is_kept(user_id: str) -> None:
    assert key(identifier("user_id"), Request(user_id=user_id)) == user_id
