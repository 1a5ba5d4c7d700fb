"""What management shows and changes, and that the hot path keeps to it."""

from __future__ import annotations

import asyncio
import base64
import json
import resource
import time
from typing import TYPE_CHECKING, Any

import pytest

from headgate.rules.live.editing import Editor
from headgate.rules.live.following import LiveRules
from headgate.rules.sources.opening import open_store
from tests.servers.fixtures import installed, on_flavours
from tests.servers.process import free_ports, patient
from tests.servers.redis import standalone
from tests.service.inside import Inside, inside

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from tests.servers.redis import RedisServer

HOUR = {"window": 3600, "algorithm": "fixed_window"}


async def checked(service: Inside, key: str, **fields: Any) -> dict[str, Any]:
    answer = await service.ask("POST", "/check", {"key": key, **fields})
    found: dict[str, Any] = answer.json()
    return found


def plain(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def test_the_api_shows_the_default_in_force() -> None:
    async def story(service: Inside) -> str:
        schema = plain(await service.ask("GET", "/openapi.json"))
        return str(schema["paths"]["/check"]["post"]["description"])

    told = inside(story, default_limit=7, default_window=1.5, default_algorithm="fixed_window")
    assert "say: 7 units in 1.5 s, counted by `fixed_window`." in told


def test_nodes_have_an_id_an_address_a_state_and_a_time() -> None:
    async def story(service: Inside) -> None:
        (node,) = plain(await service.ask("GET", "/api/nodes"))["nodes"]
        assert (node["id"], node["address"], node["state"]) == ("n1", "127.0.0.1:8080", "Up")
        assert node["registered_at"].endswith("Z")

    inside(story, node_id="n1")


def test_counters_show_count_limit_remaining_and_window() -> None:
    async def story(service: Inside) -> None:
        for key in ("a", "a", "b"):
            await checked(service, key, limit=5, **HOUR)
        found = plain(await service.ask("GET", "/api/counters"))
        rows = [
            (one["key"], one["count"], one["limit"], one["remaining"], one["window_ms"])
            for one in found["counters"]
        ]
        assert rows == [("a", 2, 5, 3, 3_600_000), ("b", 1, 5, 4, 3_600_000)]
        assert found["cursor"] == ""

    inside(story)


def test_counters_of_one_window_show_the_limit_that_holds_for_each_key(tmp_path: Path) -> None:
    """In memory it is not kept which of several limits a key was counted with."""
    file = tmp_path / "rules.yaml"
    file.write_text(RULED_USERS)
    bucket = {"default_algorithm": "token_bucket", "default_window": 3_600}

    async def story(service: Inside) -> None:
        plain(await service.ask("PUT", "/api/limits/own", {"limit": 5}))
        for key in ("own", "default", "default", "own"):
            await checked(service, key)
        for user in ("big", "small", "small", "big"):
            await service.ask("POST", "/decide", {"path": "/x", "user_id": user})
        await service.ask("POST", "/api/reset", {"key": "nobody", "window": 3_600})
        found = plain(await service.ask("GET", "/api/counters"))["counters"]
        rows = {(one["key"], one["count"], one["limit"], one["remaining"]) for one in found}
        assert rows == {
            ("own", 2, 5, 3),
            ("default", 2, 10, 8),
            ("big", 2, 90, 88),
            ("small", 2, 9, 7),
        }

    inside(story, rules=str(file), default_limit=10, **bucket)


def test_counters_come_in_pages_and_by_prefix_and_rule() -> None:
    async def story(service: Inside) -> None:
        keys = [f"user:{i:02}" for i in range(25)]
        for key in [*keys, "other"]:
            await checked(service, key, **HOUR)
        await service.ask("POST", "/decide", {"path": "/x", "ip": "203.0.113.9"})
        seen, cursor, pages = [], "", 0
        while True:
            page = plain(
                await service.ask("GET", f"/api/counters?limit=10&prefix=user:&cursor={cursor}")
            )
            seen += [one["key"] for one in page["counters"]]
            cursor, pages = page["cursor"], pages + 1
            if not cursor:
                break
        assert (seen, pages) == (keys, 3)
        ruled = plain(await service.ask("GET", "/api/counters?rule=every-client"))["counters"]
        assert [(one["key"], one["rule"]) for one in ruled] == [("203.0.113.9", "every-client")]

    inside(story)


DEEP = base64.urlsafe_b64encode(b"[" * 20_000).decode()


@pytest.mark.parametrize("cursor", ["zzz", "%00", "é", "AAAA", DEEP], ids=lambda one: one[:10])
def test_an_invalid_cursor_is_refused_or_is_a_position(cursor: str) -> None:
    async def story(service: Inside) -> int:
        return (await service.ask("GET", f"/api/counters?cursor={cursor}")).status_code

    assert inside(story) in {200, 422}


def test_limits_show_the_default_and_those_of_single_keys() -> None:
    async def story(service: Inside) -> None:
        assert plain(await service.ask("GET", "/api/limits")) == {
            "default_limit": 7,
            "default_window_ms": 30_000,
            "default_algorithm": "adaptive",
            "per_key_limits": {},
            "key_limits": {},
        }
        await service.ask("PUT", "/api/limits/k", {"limit": 2, "window": 60, "reason": "why"})
        shown = plain(await service.ask("GET", "/api/limits"))
        assert list(shown["per_key_limits"].values()) == [2]
        (own,) = shown["key_limits"].values()
        assert isinstance(own["window_ms"], int)
        assert (own["limit"], own["window_ms"], own["reason"]) == (2, 60_000, "why")

    inside(story, default_limit=7, default_window=30.0)


def test_a_limit_for_one_key_holds_whatever_a_check_names_until_it_is_removed() -> None:
    async def story(service: Inside) -> None:
        await service.ask("PUT", "/api/limits/k", {"limit": 2, **HOUR})
        answers = [(await checked(service, "k", limit=1_000))["allowed"] for _ in range(3)]
        assert answers == [True, True, False]
        assert (await checked(service, "else"))["limit"] == 100
        assert plain(await service.ask("DELETE", "/api/limits/k")) == {"removed": True}
        assert (await checked(service, "k"))["allowed"]
        assert (await service.ask("DELETE", "/api/limits/k")).status_code == 404

    inside(story)


def test_keys_may_hold_anything_that_an_address_can() -> None:
    async def story(service: Inside) -> None:
        for key in (
            "a/b",
            "a b",
            "ключ",
            "100%",
            "?x=1#y",
            "<img onerror=x>",
            "..",
            "a//b",
            "nl\nx",
            "\n",
        ):
            where = "/api/bans/" + "".join(f"%{byte:02X}" for byte in key.encode())
            plain(await service.ask("PUT", where, {}))
            assert (await checked(service, key))["source"] == "ban", key
            plain(await service.ask("DELETE", where))
            assert (await checked(service, key))["allowed"], key
            for kind, ttl in (("limits", {}), ("overrides", {"ttl": 9})):
                place = where.replace("bans", kind)
                plain(await service.ask("PUT", place, {"limit": 7, **ttl}))
                assert (await checked(service, key))["limit"] == 7, key
                plain(await service.ask("DELETE", place))

    inside(story)


def test_an_override_holds_for_its_time_and_goes_by_itself() -> None:
    async def story(service: Inside) -> None:
        await service.ask("PUT", "/api/limits/k", {"limit": 1, **HOUR})
        plain(await service.ask("PUT", "/api/overrides/k", {"limit": 3, "ttl": 60, **HOUR}))
        assert (await checked(service, "k"))["limit"] == 3
        (override,) = plain(await service.ask("GET", "/api/overrides"))["overrides"].values()
        assert override["until"] > override["set_at"]
        service.let_pass(60)
        await service.node.board.beat()
        assert (await checked(service, "k"))["limit"] == 1
        assert plain(await service.ask("GET", "/api/overrides"))["overrides"] == {}

    inside(story)


def test_a_denied_key_is_among_the_blocks_at_once() -> None:
    async def story(service: Inside) -> None:
        for _ in range(3):
            await checked(service, "k", limit=2, **HOUR)
        (block,) = plain(await service.ask("GET", "/api/blocks"))["blocked"]
        assert (block["key"], block["kind"]) == ("k", "limit")
        assert block["reason"] == "2 per hour, fixed_window"
        plain(await service.ask("POST", "/api/reset", {"key": "k"}))
        assert plain(await service.ask("GET", "/api/blocks"))["blocked"] == []
        assert (await checked(service, "k", limit=2, **HOUR))["allowed"]

    inside(story)


def test_a_ban_holds_for_what_rules_decide(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "rules:\n"
        "- {rule_id: everybody, identifier: ip_address, rate: 100/hour}\n"
        "- {rule_id: trial, identifier: user_id, rate: 100/hour, shadow: true}\n"
    )

    async def story(service: Inside) -> None:
        plain(await service.ask("PUT", "/api/bans/203.0.113.9", {"reason": "spam"}))
        plain(await service.ask("PUT", "/api/bans/ann", {}))
        for ip, user, banned in (("203.0.113.9", "bob", True), ("203.0.113.7", "ann", False)):
            asked = {"path": "/", "ip": ip, "user_id": user}
            answer = plain(await service.ask("POST", "/decide", asked))
            assert (answer["allowed"], answer["source"] == "ban") == (not banned, banned)
            explained = plain(await service.ask("POST", "/api/explain", {"request": asked}))
            assert explained["allowed"] is not banned
            if banned:
                assert answer["reason"] == "spam"
                assert explained["why"] == "203.0.113.9 is banned by anybody: spam"
        counters = plain(await service.ask("GET", "/api/counters"))["counters"]
        assert {one["key"] for one in counters if one["rule"] == "everybody"} == {"203.0.113.7"}

    inside(story, rules=str(rules))


def test_a_ban_is_a_block_with_its_reason_and_its_end() -> None:
    async def story(service: Inside) -> None:
        plain(await service.ask("PUT", "/api/bans/for-ever", {"reason": "spam"}))
        plain(await service.ask("PUT", "/api/bans/a-while", {"ttl": 60}))
        blocked = plain(await service.ask("GET", "/api/blocks"))["blocked"]
        rows = [(one["key"], one["blocked_until"] is None, one["reason"]) for one in blocked]
        assert rows == [("a-while", False, "banned"), ("for-ever", True, "spam")]
        denied = await checked(service, "for-ever")
        assert (denied["allowed"], denied["retry_after"], denied["reason"]) == (False, None, "spam")
        assert 59 < (await checked(service, "a-while"))["retry_after"] <= 60

    inside(story)


def test_what_has_ended_is_not_listed_until_the_next_beat() -> None:
    async def story(service: Inside) -> None:
        plain(await service.ask("PUT", "/api/bans/k", {"ttl": 60}))
        plain(await service.ask("PUT", "/api/overrides/k", {"limit": 1, "ttl": 60}))
        await service.node.board.stop()  # No beat comes to our help.
        service.let_pass(60)
        assert plain(await service.ask("GET", "/api/bans"))["bans"] == []
        assert plain(await service.ask("GET", "/api/blocks"))["blocked"] == []
        assert plain(await service.ask("GET", "/api/overrides"))["overrides"] == {}
        told = plain(await service.ask("POST", "/api/explain", {"key": "k"}))
        assert (told["allowed"], told["limit_from"]) == (True, "default")

    inside(story)


def test_a_reset_forgets_the_rule_or_the_window_that_was_named() -> None:
    async def story(service: Inside) -> None:
        await checked(service, "k", limit=5, **HOUR)
        await checked(service, "k")
        named = {"key": "k", "window": 3600, "algorithm": "fixed_window"}
        (forgotten,) = plain(await service.ask("POST", "/api/reset", named))["reset"]
        assert forgotten == {"rule": None, "algorithm": "fixed_window", "window_ms": 3_600_000}
        assert (await checked(service, "k", limit=5, cost=0, **HOUR))["remaining"] == 5
        assert (await checked(service, "k", cost=0))["remaining"] == 99
        await service.ask("POST", "/decide", {"path": "/x", "ip": "203.0.113.9"})
        body = {"key": "203.0.113.9", "rule": "every-client"}
        assert (
            plain(await service.ask("POST", "/api/reset", body))["reset"][0]["rule"]
            == "every-client"
        )
        assert (
            await service.ask("POST", "/api/reset", {**body, "rule": "none"})
        ).status_code == 404

    inside(story)


def test_a_reset_reports_only_what_existed() -> None:
    async def story(service: Inside) -> None:
        for named in ({}, {"window": 60}, {"rule": "login"}):
            body = {"key": "nobody", **named}
            assert plain(await service.ask("POST", "/api/reset", body)) == {
                "reset": [],
                "cursor": "",
            }
        await checked(service, "k", limit=5, **HOUR)
        (found,) = plain(await service.ask("POST", "/api/reset", {"key": "k"}))["reset"]
        assert (found["algorithm"], found["window_ms"]) == ("fixed_window", 3_600_000)

    inside(story)


def test_an_explanation_says_why_and_when_and_takes_nothing() -> None:
    async def story(service: Inside) -> None:
        for _ in range(2):
            await checked(service, "k", limit=2, **HOUR)
        for _ in range(3):
            told = plain(
                await service.ask("POST", "/api/explain", {"key": "k", "limit": 2, **HOUR})
            )
            assert (told["allowed"], told["limit_from"]) == (False, "check")
            assert 0 < told["passes_after"] <= 3600
        assert plain(await service.ask("POST", "/api/explain", {"key": "new"}))["allowed"]
        assert (await checked(service, "new", cost=0))["remaining"] == 100
        await service.ask("PUT", "/api/bans/k", {"reason": "spam"})
        banned = plain(await service.ask("POST", "/api/explain", {"key": "k"}))
        assert (banned["allowed"], banned["passes_after"]) == (False, None)
        assert banned["why"] == "banned by anybody: spam"

    inside(story)


def test_an_explanation_of_a_request_names_every_rule() -> None:
    async def story(service: Inside) -> None:
        asked = {"request": {"method": "POST", "path": "/login", "ip": "203.0.113.9"}}
        told = plain(await service.ask("POST", "/api/explain", asked))
        outcomes = {one["rule"]: one["outcome"] for one in told["trace"]["rules"]}
        assert outcomes["login"] == "enforced"
        assert {one["rule"] for one in told["answers"]} >= {"login"}
        for _ in range(5):
            await service.ask("POST", "/decide", asked["request"])
        told = plain(await service.ask("POST", "/api/explain", asked))
        assert (told["allowed"], told["why"]) == (False, "denied by login")
        assert told["passes_after"] > 0

    inside(story)


def test_an_explanation_means_the_same_request_as_a_decision(tmp_path: Path) -> None:
    """Behind the same proxies, with a path of any length; and a rule in shadow denies nobody here, either."""
    file = tmp_path / "rules.yaml"
    file.write_text(
        "- {rule_id: one, identifier: ip_address, rate: 1/hour}\n"
        "- {rule_id: trial, identifier: ip_address, rate: 1/hour, shadow: true}\n"
    )

    async def story(service: Inside) -> None:
        asked = {
            "path": "/" + 9_000 * "x",
            "ip": "10.0.0.1",
            "headers": {"X-Forwarded-For": "203.0.113.9"},
        }
        plain(await service.ask("POST", "/decide", asked))
        decided = plain(await service.ask("POST", "/decide", asked))
        told = plain(await service.ask("POST", "/api/explain", {"request": asked}))
        assert told["why"] == "denied by one"
        assert (told["trace"]["ip"], decided["key"]) == ("203.0.113.9", "203.0.113.9")
        assert [(one["rule"], one["source"]) for one in told["answers"]] == [
            ("one", "engine"),
            ("trial", "shadow"),
        ]

    inside(story, rules=str(file), trusted_proxies=("10.0.0.0/8",), bad_paths="pass")


def test_an_explanation_says_what_is_left_and_what_was_asked_for() -> None:
    async def story(service: Inside) -> list[str]:
        found = []
        for taken, cost in ((8, 3), (2, 1)):
            await checked(service, "k", limit=10, cost=taken, **HOUR)
            asked = {"key": "k", "limit": 10, "cost": cost, **HOUR}
            found.append(plain(await service.ask("POST", "/api/explain", asked))["why"])
        return found

    assert inside(story) == ["only 2 left, and 3 asked for", "nothing left, and 1 asked for"]


def test_traffic_and_top_report_the_requests() -> None:
    async def story(service: Inside) -> None:
        for i in range(10):
            await checked(service, "busy" if i % 2 else f"quiet{i}", limit=3)
        top = plain(await service.ask("GET", "/api/top?limit=1"))["top"]
        assert top == [{"key": "busy", "hits": 5, "error": 0}]
        traffic: dict[str, Any] = {"req_per_sec": 0}
        for _ in range(50):
            if traffic["req_per_sec"] == 1.0:
                break
            await asyncio.sleep(0.1)  # Until the second is over, and the board has beaten.
            traffic = plain(await service.ask("GET", "/api/traffic"))
        assert (traffic["total_requests"], traffic["total_denied"]) == (10, 2)
        assert (traffic["req_per_sec"], traffic["deny_rate"]) == (1.0, 0.2)
        assert len(traffic["seconds"]) == 10

    inside(story)


def test_health_shows_the_state_of_the_node() -> None:
    async def story(service: Inside) -> None:
        health = plain(await service.ask("GET", "/health"))
        assert (health["status"], health["redis"], health["rules"]) == ("ok", "memory", "ok")
        service.node.draining = True
        assert plain(await service.ask("GET", "/health"))["status"] == "draining"
        assert (await service.ask("GET", "/health/ready")).status_code == 503
        assert (await service.ask("GET", "/health/live")).status_code == 200
        service.node.draining = False
        assert plain(await service.ask("GET", "/health/ready")) == {"status": "ready"}

    inside(story)


@pytest.mark.parametrize("what", ["board", "audit_log"])
def test_an_unwritable_file_is_reported_as_such_and_logged(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "files").mkdir()
    files = {"board": "memory://?file={}", "audit_log": "{}"}
    setting = {what: files[what].format(tmp_path / "files" / "file")}

    async def story(service: Inside) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # As if the disk were full.
        try:
            refused = plain(await service.ask("PUT", "/api/bans/k", {}), 503)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert refused["code"] == "not-written"
        assert refused["detail"] == "nothing was changed; see the service's log"
        assert (await checked(service, "k"))["allowed"] is True

    inside(story, **setting)
    assert [one for one in caplog.messages if one.startswith("a change was not made: the ")]


def test_a_store_that_was_never_up_shows_on_the_page_and_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(service: Inside) -> None:
        assert plain(await service.ask("GET", "/health"))["redis"] == "unreachable"
        assert (
            "<dt>the store</dt><dd>does not answer; " in (await service.ask("GET", "/about")).text
        )

    inside(story, engine=f"redis://127.0.0.1:{free_ports(1)[0]}")
    assert [one for one in caplog.messages if one.startswith("the board does not answer: ")]


def test_a_lost_store_shows_and_management_says_so() -> None:
    with installed(), standalone("redis-7.0") as redis:

        async def story(service: Inside) -> None:
            assert plain(await service.ask("GET", "/health"))["redis"] == "connected"
            plain(await service.ask("PUT", "/api/bans/k", {}))
            redis.kill()
            lost = await service.ask("PUT", "/api/bans/l", {})
            assert lost.status_code == 503
            assert lost.headers["content-type"] == "application/problem+json"
            assert (await checked(service, "k"))["source"] == "ban"  # Still known.
            await service.ask("POST", "/check", {"key": "x"})
            await service.node.board.beat()
            health = plain(await service.ask("GET", "/health"))
            assert (health["status"], health["redis"], health["board"]) == (
                "degraded",
                "unreachable",
                "stale",
            )
            nodes = plain(await service.ask("GET", "/api/nodes"))
            assert nodes["problem"]
            redis.start()
            assert await service.node.board.beat()
            service.node.store.answered()
            assert plain(await service.ask("GET", "/health"))["redis"] == "connected"

        inside(story, engine=f"{redis.url}?deadline=0.2&connect_timeout=0.2")


def test_a_store_that_was_never_there_shows_without_a_single_check() -> None:
    async def story(service: Inside) -> None:
        health = plain(await service.ask("GET", "/health"))
        assert (health["status"], health["redis"]) == ("degraded", "unreachable")
        assert "headgate_store_up 0.0" in (await service.ask("GET", "/metrics")).text

    inside(story, engine="redis://127.0.0.1:1/0?deadline=0.1&connect_timeout=0.1")


def test_a_store_that_is_not_to_see_keys_sees_none_of_them() -> None:
    with installed(), standalone("redis-7.0") as redis:

        async def story(service: Inside) -> None:
            for _ in range(2):
                await checked(service, "a-secret-name", limit=1, **HOUR)
            await service.node.board.beat()
            blocked = plain(await service.ask("GET", "/api/blocks"))["blocked"]
            assert [one["key"] for one in blocked] == ["a-secret-name"]
            everything = "".join(
                str(redis.call("HGETALL", name))
                for name in redis.call("KEYS", "hg:b*")
                if redis.call("TYPE", name) == "hash"
            )
            assert "a-secret-name" not in everything + str(redis.call("KEYS", "*"))

        inside(story, engine=f"{redis.url}?hash_keys=yes&secret=s")


def test_two_nodes_on_one_redis_see_each_others_blocks_bans_and_traffic() -> None:
    with installed(), standalone("redis-7.0") as redis:

        async def story(a: Inside) -> None:
            async with Inside(engine=patient(redis.url), node_id="b", port=8081) as b:
                for _ in range(3):
                    await checked(a, "k", limit=2, **HOUR)
                plain(await a.ask("PUT", "/api/bans/bad", {}))
                blocked: list[dict[str, Any]] = []
                for _ in range(40):
                    blocked = plain(await b.ask("GET", "/api/blocks"))["blocked"]
                    if {one["key"] for one in blocked} == {"k", "bad"}:
                        break
                    await asyncio.sleep(0.1)  # Until b has beaten, by the server's clock.
                assert {one["key"] for one in blocked} == {"k", "bad"}
                assert (await checked(b, "bad"))["source"] == "ban"
                nodes = plain(await b.ask("GET", "/api/nodes"))["nodes"]
                assert {one["id"]: one["state"] for one in nodes} == {"a": "Up", "b": "Up"}
                assert (await checked(b, "k", limit=2, **HOUR))["allowed"] is False

        inside(story, engine=patient(redis.url), node_id="a")


RULED_USERS = """
- rule_id: users
  identifier: user_id
  rate: 9/hour
  algorithm: token_bucket
  overrides:
    big: 90/hour
"""

RULES = """
rules:
  - {rule_id: one, identifier: ip_address, rate: 5/minute}
  - {rule_id: two, identifier: ip_address, rate: 9/minute, match: {path_pattern: /x}}
"""


def test_rules_can_be_changed_and_rolled_back(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)

    async def story(service: Inside) -> None:
        rule = {"identifier": "ip_address", "rate": "7/minute", "match": {"path_pattern": "/y"}}
        made = plain(await service.ask("PUT", "/api/rules/three", {"rule": rule, "note": "new"}))
        assert (made["revision"], made["changed"]) == (1, ["three"])
        found = plain(await service.ask("GET", "/api/rules"))
        assert [one["rule_id"] for one in found["rules"]] == ["one", "three", "two"]
        assert (found["editable"], found["problem"]) == (True, None)
        one = plain(await service.ask("GET", "/api/rules/three"))
        assert one["rate"] == "7/minute"
        decided = plain(await service.ask("POST", "/decide", {"path": "/y", "ip": "203.0.113.9"}))
        assert "three" in json.dumps(decided)
        (entry,) = plain(await service.ask("GET", "/api/history"))["history"]
        assert (entry["action"], entry["author"], entry["note"]) == ("set", "anybody", "new")
        plain(await service.ask("POST", "/api/rollback", {}))
        assert (await service.ask("GET", "/api/rules/three")).status_code == 404
        plain(await service.ask("DELETE", "/api/rules/two?note=gone"))
        assert "two" not in file.read_text()
        refused = await service.ask("DELETE", "/api/rules/one")
        assert refused.status_code == 409
        assert "allow_empty" in refused.json()["detail"]
        actions = [one["action"] for one in service.node.audit.recent(9)]
        assert actions == ["rule.delete", "rules.rollback", "rule.put", "chain.open"]

    inside(story, rules=str(file))


def test_going_back_passes_the_guard_and_holds_at_once(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("{rule_id: other, identifier: ip_address, rate: 5/minute}")
    Editor(open_store(file)).push(RULES.encode(), "new.yaml").make(author="ann", at=0.0, force=True)

    async def story(service: Inside) -> None:
        plain(await service.ask("POST", "/api/rollback", {"revision": 0}))
        found = plain(await service.ask("GET", "/api/rules"))
        assert ([one["rule_id"] for one in found["rules"]], found["problem"]) == (["other"], None)

    inside(story, rules=str(file))


def test_of_two_who_saw_the_same_rules_only_one_changes_them(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("defaults: {identifier: ip_address}\n" + RULES.lstrip())

    async def story(service: Inside) -> None:
        seen = (await service.ask("GET", "/api/rules/one")).headers["etag"]
        assert seen == (await service.ask("GET", "/api/rules")).headers["etag"]
        body = {"rule": {"identifier": "ip_address", "rate": "7/minute"}}
        first = await service.ask("PUT", "/api/rules/one", body, if_match=seen)
        assert first.status_code == 200, first.text
        now = first.headers["etag"]
        assert now == (await service.ask("GET", "/api/rules/one")).headers["etag"] != seen
        body["rule"]["rate"] = "8/minute"
        for method, path, sent in (
            ("PUT", "/api/rules/one", body),
            ("DELETE", "/api/rules/two?force=true", None),
            ("POST", "/api/rollback", {}),
        ):
            for tag in (seen, f"W/{now}", '"x", "y"', "", now[1:-1]):
                late = await service.ask(method, path, sent, if_match=tag)
                assert (late.status_code, late.json()["code"]) == (412, "changed-meanwhile"), tag
                assert late.headers["etag"] == now
        assert plain(await service.ask("GET", "/api/rules/one"))["rate"] == "7/minute"
        assert len(service.node.audit.recent(9)) == 2
        for tag in (f'"x", {now}', "*"):
            again = await service.ask("PUT", "/api/rules/one", body, if_match=tag)
            assert again.status_code == 200, again.text
            now = again.headers["etag"]
        file.write_text(file.read_text().replace("9/minute", "6/minute"))  # By hand, past us.
        late = await service.ask("PUT", "/api/rules/one", body, if_match=now)
        assert late.status_code == 412

    inside(story, rules=str(file))


def test_a_bad_rule_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)

    async def story(service: Inside) -> None:
        for rule in (
            {"identifier": "ip_address", "rate": "5/fortnight"},
            {"identifier": "ip_address"},
            {"rate": "5/minute", "no_such_field": 1},
            {"rule_id": "other", "identifier": "ip_address", "rate": "5/minute"},
        ):
            answer = await service.ask("PUT", "/api/rules/bad", {"rule": rule})
            assert answer.status_code == 422, answer.text
        assert file.read_text() == RULES
        assert len(service.node.audit.recent(9)) == 1

    inside(story, rules=str(file))


@pytest.mark.parametrize("gone", ["missing", "empty"])
def test_a_change_while_the_rules_file_is_gone_is_refused(tmp_path: Path, gone: str) -> None:
    """It would leave this one rule in the place of all."""
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)

    async def story(service: Inside) -> None:
        rule = {"identifier": "ip_address", "rate": "5/minute"}
        plain(await service.ask("PUT", "/api/rules/three", {"rule": rule}))
        if gone == "empty":
            file.write_text("")
        else:
            file.unlink()
        answer = await service.ask("PUT", "/api/rules/one", {"rule": rule})
        assert answer.status_code == 409
        assert "has no rules any more, and the 3 that hold" in answer.json()["detail"]
        assert not file.exists() or not file.read_text()
        plain(await service.ask("POST", "/api/rollback", {"revision": 0}))
        assert file.read_text() == RULES
        found = plain(await service.ask("GET", "/api/rules"))
        assert ([one["rule_id"] for one in found["rules"]], found["problem"]) == (
            ["one", "two"],
            None,
        )

    inside(story, rules=str(file))


def test_a_change_after_a_manual_edit_applies_and_the_alarm_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)

    async def story(service: Inside) -> None:
        rule = {"identifier": "ip_address", "rate": "5/minute"}
        file.write_text("{rule_id: other, identifier: ip_address, rate: 5/minute}")
        plain(await service.ask("PUT", "/api/rules/third", {"rule": rule}))
        found = plain(await service.ask("GET", "/api/rules"))
        assert "2 of 2 rules are gone (one, two)" in found["alarm"]
        health = plain(await service.ask("GET", "/health"))
        assert (health["status"], health["rules"]) == ("ok", "alarm")
        plain(await service.ask("PUT", "/api/rules/third", {"rule": rule, "force": True}))
        found = plain(await service.ask("GET", "/api/rules"))
        assert found["alarm"] is None
        assert plain(await service.ask("GET", "/health"))["rules"] == "ok"
        assert ([one["rule_id"] for one in found["rules"]], found["problem"]) == (
            ["other", "third"],
            None,
        )

    inside(story, rules=str(file))


def test_a_change_not_yet_in_force_here_is_reported_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    refresh = LiveRules.refresh

    def too_late(live: LiveRules) -> None:
        file.unlink()
        refresh(live)

    async def story(service: Inside) -> None:
        rule = {"identifier": "ip_address", "rate": "7/minute"}
        monkeypatch.setattr(LiveRules, "refresh", too_late)
        answer = await service.ask("PUT", "/api/rules/three", {"rule": rule})
        assert answer.status_code == 202
        warning = answer.json()["warnings"][-1]
        assert warning.startswith("it is written, but not yet in force on this node: ")
        assert "no such file" in warning

    inside(story, rules=str(file))


def test_the_starter_rules_cannot_be_changed() -> None:
    async def story(service: Inside) -> None:
        rule = {"identifier": "ip_address", "rate": "5/minute"}
        answer = await service.ask("PUT", "/api/rules/x", {"rule": rule})
        assert answer.status_code == 409
        assert "set 'rules'" in answer.json()["detail"]

    inside(story)


def test_every_change_is_in_the_audit_log_with_who_and_why(tmp_path: Path) -> None:
    async def story(service: Inside) -> None:
        await service.ask("PUT", "/api/bans/k", {"reason": "spam"})
        await service.ask("DELETE", "/api/bans/k?reason=fine")
        await service.ask("PUT", "/api/limits/k", {"limit": 5})
        await service.ask("PUT", "/api/limits/k", {"limit": 6})
        await service.ask("DELETE", "/api/bans/k")  # Not there: no change, no line.
        found = plain(await service.ask("GET", "/api/audit"))
        assert found["durable"] is True
        rows = [
            (one["action"], one["target"], one["before"], one["reason"]) for one in found["entries"]
        ]
        assert rows[0] == ("limit.put", "k", "5/minute", "")
        assert rows[1] == ("limit.put", "k", None, "")
        assert (rows[2][0], rows[2][3]) == ("ban.delete", "fine")
        assert rows[3] == ("ban.put", "k", None, "spam")
        assert found["entries"][0]["hash"] == found["head"]

    inside(story, audit_log=str(tmp_path / "audit.jsonl"))


def test_the_history_of_the_starter_rules_is_refused_with_the_reason() -> None:
    async def story(service: Inside) -> None:
        refused = plain(await service.ask("GET", "/api/history"), 409)
        assert refused["title"] == "Conflict"
        assert refused["detail"].startswith("the starter rules cannot be changed")

    inside(story)


def test_a_counter_whose_limit_is_not_known_has_none() -> None:
    """Two limits share a window: which of them counted a key is not kept."""

    async def story(service: Inside) -> None:
        for limit in (5, 9):
            await checked(service, "k", limit=limit, window=120, algorithm="token_bucket")
        (found,) = plain(await service.ask("GET", "/api/counters"))["counters"]
        assert (found["key"], found["limit"], found["remaining"]) == ("k", None, None)
        assert isinstance(found["window_ms"], int)

    inside(story)


def test_a_reset_finds_every_window_of_a_key_and_no_other_key() -> None:
    async def story(service: Inside) -> None:
        for window in (60, 120, 3_600):
            for key in ("k", "k2"):
                await checked(service, key, limit=5, window=window)
        found = plain(await service.ask("POST", "/api/reset", {"key": "k"}))
        assert sorted(one["window_ms"] for one in found["reset"]) == [60_000, 120_000, 3_600_000]
        assert found["cursor"] == ""
        left = plain(await service.ask("GET", "/api/counters"))["counters"]
        assert {one["key"] for one in left} == {"k2"}

    inside(story)


@on_flavours("redis_server", "redis-7.0")
def test_a_store_of_many_keys_is_looked_through_a_little_at_a_time(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.service.management.counters.LOOK_FOR", -1.0)  # One page a call.
    monkeypatch.setattr("headgate.engines.redis.operations.MAX_SCANS", 3)

    async def story(service: Inside) -> None:
        await checked(service, "wanted", limit=5, window=7_200)
        batch = [{"key": f"other:{number}"} for number in range(1_000)]
        await service.ask("POST", "/check/batch", {"checks": batch})
        for number in range(9):
            many = [{"key": f"{number}:{one}"} for one in range(1_000)]
            await service.ask("POST", "/check/batch", {"checks": many})
        pages, seen, cursor = 0, 0, ""
        while True:
            path = f"/api/counters?prefix=wanted&cursor={cursor}"
            page = plain(await service.ask("GET", path))
            pages, seen, cursor = pages + 1, seen + len(page["counters"]), page["cursor"]
            if not cursor:
                break
        assert (seen, pages > 2) == (1, True)
        calls, forgotten, cursor = 0, [], ""
        while True:
            body = {"key": "wanted", "cursor": cursor}
            found = plain(await service.ask("POST", "/api/reset", body))
            calls, cursor = calls + 1, found["cursor"]
            forgotten += found["reset"]
            if not cursor:
                break
        assert [one["window_ms"] for one in forgotten] == [7_200_000]
        assert calls > 1

    inside(story, engine=patient(redis_server.url))


def test_times_of_resets_are_on_the_clock_of_the_store() -> None:
    async def story(service: Inside) -> None:
        plain(await service.ask("PUT", "/api/bans/bad", {"ttl": 60}))
        service.node.board.offset_us = 3_600_000_000
        plain(await service.ask("PUT", "/api/bans/worse", {"ttl": 60}))
        now = time.time() + 3_600
        for key, after in (("good", 120), ("worse", 60)):
            answer = await service.ask("POST", "/check", {"key": key})
            assert now <= int(answer.headers["x-ratelimit-reset"]) <= now + after + 2
        assert plain(await service.ask("POST", "/check", {"key": "bad"}))["allowed"]

    inside(story)


def test_the_about_page_shows_no_host_and_no_path(tmp_path: Path) -> None:
    rules = tmp_path / "secret-rules.yaml"
    rules.write_text("rules: [{rule_id: a, identifier: ip_address, rate: 5/minute}]\n")

    async def story(service: Inside) -> str:
        return (await service.ask("GET", "/about")).text

    page = inside(story, rules=str(rules), engine="redis://db.internal.invalid:6390/0")
    assert "the operator" in page
    for told in ("secret-rules", str(tmp_path), "db.internal", "6390"):
        assert told not in page
