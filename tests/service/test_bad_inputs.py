"""Hostile and broken bodies: refused whole, with a problem that says where, and nothing is counted."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.inside import Inside, inside
from tests.service.raw import Raw, post
from tests.service.running import Service, service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = "victim"


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    with service() as one:
        yield one


BAD_BODIES: dict[str, tuple[bytes, int, str | None]] = {
    "empty": (b"", 400, None),
    "truncated": (b'{"key":"victim"', 400, None),
    "trailing": (b'{"key":"victim"} {}', 400, None),
    "no object": (b'["victim"]', 422, "#"),
    "null": (b"null", 422, "#"),
    "no key": (b'{"limit":5}', 422, "#"),
    "empty key": (b'{"key":""}', 422, "#/key"),
    "key is a number": (b'{"key":1}', 422, "#/key"),
    "key twice": (b'{"key":"other","key":"victim"}', 400, None),
    "limit twice": (b'{"key":"victim","limit":10,"limit":1000000}', 400, None),
    "limit twice, escaped": (b'{"key":"victim","limit":10,"\\u006cimit":1000000}', 400, None),
    "twice in what is ignored": (b'{"key":"victim","x":{"a":1,"a":2}}', 400, None),
    "too deep": (b'{"key":"victim","x":' + b"[" * 40 + b"]" * 40 + b"}", 400, None),
    "much too deep": (b'{"key":"victim","x":' + b"[" * 30_000 + b"]" * 30_000 + b"}", 400, None),
    "deep and wrong": (b'{"key":5,"x":' + b"[" * 40 + b"]" * 40 + b"}", 400, None),
    "invalid UTF-8": (b'{"key":"victim\xff"}', 400, None),
    "invalid UTF-8 in what is ignored": (b'{"key":"victim","x":"\xff"}', 400, None),
    "UTF-16": ('{"key":"victim"}'.encode("utf-16"), 400, None),
    "BOM": (b'\xef\xbb\xbf{"key":"victim"}', 400, None),
    "half a surrogate": (b'{"key":"victim\\ud800"}', 400, None),
    "NUL": (b'{"key":"victim\x00"}', 400, None),
    "key of 9 KB": (b'{"key":"' + b"v" * 9_000 + b'"}', 422, "#/key"),
    "key of 9 KB in UTF-8": (b'{"key":"' + "é".encode() * 4_500 + b'"}', 422, "#/key"),
    "limit is true": (b'{"key":"victim","limit":true}', 422, "#/limit"),
    "limit is null": (b'{"key":"victim","limit":null}', 422, "#/limit"),
    "limit is text": (b'{"key":"victim","limit":"10"}', 422, "#/limit"),
    "limit is 1.5": (b'{"key":"victim","limit":1.5}', 422, "#/limit"),
    "limit is 1e3": (b'{"key":"victim","limit":1e3}', 422, "#/limit"),
    "limit is negative": (b'{"key":"victim","limit":-1}', 422, "#/limit"),
    "limit is 2^53": (b'{"key":"victim","limit":9007199254740992}', 422, "#/limit"),
    "limit of 5000 digits": (b'{"key":"victim","limit":' + b"9" * 5_000 + b"}", 422, "#/limit"),
    "window is NaN": (b'{"key":"victim","window":NaN}', 400, None),
    "window is Infinity": (b'{"key":"victim","window":Infinity}', 400, None),
    "window is 1e999": (b'{"key":"victim","window":1e999}', 422, "#/window"),
    "window is 0": (b'{"key":"victim","window":0}', 422, "#/window"),
    "window is negative": (b'{"key":"victim","window":-60}', 422, "#/window"),
    "window is a century": (b'{"key":"victim","window":3153600000}', 422, "#/window"),
    "cost is negative": (b'{"key":"victim","cost":-1}', 422, "#/cost"),
    "cost is 10^30": (b'{"key":"victim","cost":' + b"1" + b"0" * 30 + b"}", 422, "#/cost"),
    "cost is true": (b'{"key":"victim","cost":true}', 422, "#/cost"),
    "burst is 0": (b'{"key":"victim","burst":0}', 422, "#/burst"),
    "burst without a bucket": (
        b'{"key":"victim","burst":5,"algorithm":"fixed_window"}',
        422,
        "#/burst",
    ),
    "no such algorithm": (b'{"key":"victim","algorithm":"gcra"}', 422, "#/algorithm"),
    "algorithm is a number": (b'{"key":"victim","algorithm":7}', 422, "#/algorithm"),
    "a log too long": (
        b'{"key":"victim","algorithm":"sliding_log","limit":1000000}',
        422,
        "#/limit",
    ),
    "leading zero": (b'{"key":"victim","limit":010}', 400, None),
    "single quotes": (b"{'key':'victim'}", 400, None),
}


@pytest.mark.parametrize("path", ["/check", "/check?x=1"])
@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_bad_body_is_refused_and_counts_nothing(running: Service, name: str, path: str) -> None:
    body, status, pointer = BAD_BODIES[name]
    used = running.used(KEY)
    with Raw(running.port) as raw:
        answer = raw.send(post(body, path)).answer()
        assert answer.status == status
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json
        assert problem["status"] == status
        assert "allowed" not in problem
        assert pointer == problem.get("errors", [{"pointer": None}])[0]["pointer"]
        assert "Traceback" not in problem["detail"]
        assert raw.send(post({"key": "next", "cost": 0})).answer().status == 200
    assert running.used(KEY) == used


@pytest.mark.parametrize(
    "key",
    [
        "a:b:c",
        'quo"te',
        "back\\slash",
        "line\nbreak\ttab\r",
        "é",
        "e\u0301",
        "👍🏽",
        "\u202eright-to-left",
        "{}",
        "}",
        "}x",
        "*",
        "..",
        "__proto__",
        "rl:meta",
        "x" * 8_192,
        "\x00",
        "=cmd|'/c calc'!A1",
        "<img src=x onerror=alert(1)>",
    ],
)
def test_whatever_a_key_holds_is_data(running: Service, key: str) -> None:
    mark = key if len(key) > 8_000 else f"{uuid.uuid4()}{key}"
    answers = [running.check(mark, limit=3) for _ in range(4)]
    assert [one["allowed"] for one in answers] == [True, True, True, False]
    assert {one["key"] for one in answers} == {mark}
    assert running.check(mark + "!" if len(key) < 8_000 else "x" * 8_191, limit=3)["remaining"] == 2


def test_a_composed_and_a_decomposed_letter_are_two_keys(running: Service) -> None:
    mark = str(uuid.uuid4())
    running.check(mark + "é", limit=1)
    assert running.check(mark + "e\u0301", limit=1)["allowed"] is True


def test_unknown_fields_are_ignored(running: Service) -> None:
    mark = str(uuid.uuid4())
    future: dict[str, Any] = {"key": mark, "limit": 5, "region": {"name": "eu:1"}, "n": [1, 2]}
    status, _, answer = running.ask("POST", "/check", future)
    assert (status, answer["remaining"]) == (200, 4)


def test_a_limit_of_zero_denies_everything_and_a_cost_of_zero_takes_nothing(
    running: Service,
) -> None:
    mark = str(uuid.uuid4())
    assert running.check(mark, limit=0)["allowed"] is False
    for _ in range(3):
        assert running.check(mark, cost=0)["remaining"] == 100


def test_a_batch_is_answered_in_order_and_a_bad_check_in_its_place(running: Service) -> None:
    mark = str(uuid.uuid4())
    checks = [
        {"key": mark, "limit": 3},
        {"key": mark, "limit": 3, "cost": -1},
        {"key": mark, "limit": 3, "cost": 2},
        {"limit": 3},
        {"key": mark, "limit": 3},
        {"key": f"{mark}:other"},
    ]
    _, _, answer = running.ask("POST", "/check/batch", {"checks": checks})
    found = answer["decisions"]
    assert [one.get("allowed") for one in found] == [True, None, True, None, False, True]
    assert [one["error"]["errors"][0]["pointer"] for one in (found[1], found[3])] == [
        "#/checks/1/cost",
        "#/checks/3",
    ]


@pytest.mark.parametrize(
    "checks, status",
    [([], 422), ([{"key": "k", "cost": 0}] * 1_000, 200), ([{"key": "k", "cost": 0}] * 1_001, 422)],
)
def test_a_batch_has_one_to_a_thousand_checks(
    running: Service, checks: list[dict[str, Any]], status: int
) -> None:
    found, _, answer = running.ask("POST", "/check/batch", {"checks": checks})
    assert found == status
    if status == 200:
        assert len(answer["decisions"]) == 1_000


@pytest.mark.parametrize(
    "body",
    [
        b'{"checks":[{"key":"victim","key":"x"}]}',
        b'{"checks":[{"key":"victim"}],"checks":[{"key":"victim"}]}',
        b'{"checks":[{"key":"victim","limit":1,"limit":1000000}]}',
    ],
)
def test_a_field_twice_in_a_batch_counts_nothing(running: Service, body: bytes) -> None:
    used = running.used(KEY)
    with Raw(running.port) as raw:
        answer = raw.send(post(body, "/check/batch")).answer()
    if answer.status == 200:
        assert answer.json["decisions"][0]["error"]["code"] == "bad-json"
    else:
        assert (answer.status, answer.json["code"]) == (400, "bad-json")
    assert running.used(KEY) == used


@pytest.mark.parametrize("path", ["/decide", "/decide?x=1"])
@pytest.mark.parametrize(
    "body, status",
    [
        ({"method": 1}, 422),
        ({"headers": {"a": 1}}, 422),
        ({"descriptors": [["only one"]]}, 422),
        ({"descriptors": [["k", "v"]] * 33}, 422),
        ({"cost": -1}, 422),
        ({"cost": 1.5}, 422),
        (b'{"path":"/a","path":"/b"}', 400),
        (b'{"headers":{"A":"1","A":"2"}}', 400),
        ([], 422),
        ({"path": "/%zz", "ip": "not an address", "host": "\x00", "extra": 1}, 200),
        ({"path": "/" + "a/" * 8_000}, 200),
        ({}, 200),
    ],
)
def test_bad_requests_for_the_rules(running: Service, body: Any, status: int, path: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with Raw(running.port) as raw:
        assert raw.send(post(content, path)).answer().status == status


@pytest.mark.parametrize(
    "path, body, status",
    [
        ("/reserve", {"key": "r", "cost": 5, "ttl": 0}, 422),
        ("/reserve", {"key": "r", "cost": 5, "ttl": 1e9}, 422),
        ("/reserve", {"key": "r", "cost": True}, 422),
        ("/settle", {"token": "", "actual": 1}, 422),
        ("/settle", {"token": "x\n", "actual": 1}, 422),
        ("/settle", {"token": "unknown", "actual": -1}, 422),
        ("/settle", {"token": "unknown", "actual": 1}, 200),
        ("/acquire", {"key": "r"}, 422),
        ("/acquire", {"key": "r", "limit": -1}, 422),
        ("/acquire", {"key": "r", "limit": 1, "cost": 0}, 422),
        ("/acquire", {"key": "r", "limit": 1, "ttl": 0}, 422),
        ("/acquire", {"key": "", "limit": 1}, 422),
        ("/release", {"key": "r", "token": "unknown"}, 200),
        ("/release", {"key": "r"}, 422),
    ],
)
def test_bad_reservations_and_slots(running: Service, path: str, body: Any, status: int) -> None:
    found, _, answer = running.ask("POST", path, body)
    assert found == status, answer


def _login_rules(folder: Path) -> Path:
    rules = folder / "rules.json"
    login = {"rule_id": "login", "match": {"path_pattern": "/login"}, "rate": "1/hour"}
    everybody = {"rule_id": "everybody", "rate": "100/hour", "identifier": "ip_address"}
    rules.write_text(json.dumps({"rules": [{**login, "identifier": "ip_address"}, everybody]}))
    return rules


@pytest.mark.parametrize(
    "path", ["/x%2f..%2flogin", "/\\login", "\\login", "/login%5c", "/login%2F"]
)
def test_a_path_that_can_be_read_in_two_ways_is_no_way_around_a_rule(
    path: str, tmp_path: Path
) -> None:
    async def story(one: Inside) -> list[Any]:
        asked = {"method": "POST", "path": path, "ip": "203.0.113.9"}
        decided = [(await one.ask("POST", "/decide", asked)).json() for _ in range(2)]
        return [*decided, (await one.ask("POST", "/api/explain", {"request": asked})).json()]

    first, second, explained = inside(story, rules=str(_login_rules(tmp_path)))
    assert [first["allowed"], second["allowed"], explained["allowed"]] == [True, False, False]
    assert (second["rule"], explained["why"]) == ("login", "denied by login")
    assert explained["trace"]["also_read_as"] == ["/login"]


@pytest.mark.parametrize("path", ["/login%00", "/login\n", "/%zz/login", "/%ff", "/" + "x" * 9_000])
def test_a_path_that_cannot_be_read_is_denied_unless_it_is_to_pass(
    path: str, tmp_path: Path
) -> None:
    """Never silently past the rule that it dodges; and an explanation says the same as a decision."""
    rules = _login_rules(tmp_path)
    asked = {"method": "POST", "path": path, "ip": "203.0.113.9"}

    async def story(one: Inside) -> tuple[Any, Any]:
        decided = (await one.ask("POST", "/decide", asked)).json()
        return decided, (await one.ask("POST", "/api/explain", {"request": asked})).json()

    decided, explained = inside(story, rules=str(rules), bad_paths="pass")
    assert (decided["allowed"], decided["rule"], explained["allowed"]) == (True, "everybody", True)
    assert decided["reason"]
    denied, why = inside(story, rules=str(rules))
    assert (denied["allowed"], denied["never"], why["allowed"]) == (False, True, False)
    assert why["why"] == f"denied by the setting bad_paths: {denied['reason']}"


@pytest.mark.parametrize("fast", [True, False])
def test_a_batch_of_a_thousand_ordinary_checks_fits(running: Service, fast: bool) -> None:  # noqa: FBT001
    check = {"limit": 100, "window": 60, "algorithm": "sliding_window"}
    checks = [{"key": f"user:{fast}:{at:032}", **check} for at in range(1_000)]
    with Raw(running.port) as raw:
        path = "/check/batch" if fast else "/check/batch?x=1"
        answer = raw.send(post({"checks": checks}, path)).answer()
        assert answer.status == 200
        assert [one["remaining"] for one in answer.json["decisions"]] == [99] * 1_000
        too_long = b'{"checks": [' + b" " * 1_048_576 + b"]}"
        assert raw.send(post(too_long, path)).answer().status == 413
