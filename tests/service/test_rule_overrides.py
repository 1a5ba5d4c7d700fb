"""An override that names a rule: it replaces what the rule gives one key, for a while, on every node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.service.inside import Inside, inside

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from tests.servers.redis import RedisServer

RULES = """\
rules:
- {rule_id: login, identifier: ip_address, rate: 2/hour, match: {path_pattern: /login}}
- {rule_id: search, identifier: ip_address, rate: 3/minute; 2/hour, match: {path_pattern: /search}}
- {rule_id: export, identifier: ip_address, rate: 3/calendar day, match: {path_pattern: /export}}
"""
IP = "203.0.113.9"


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return str(path)


async def decided(service: Inside, path: str, many: int, ip: str = IP) -> list[bool]:
    answers = [await service.ask("POST", "/decide", {"path": path, "ip": ip}) for _ in range(many)]
    return [one.json()["allowed"] for one in answers]


def plain(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


async def overrode(service: Inside, rule: str, status: int = 200, **fields: Any) -> Any:
    body = {"ttl": 60, "rule": rule, "reason": "a test", **fields}
    return plain(await service.ask("PUT", f"/api/overrides/{IP}", body), status)


def test_it_lets_a_denied_key_pass_counts_what_was_used_and_ends_by_itself(rules: str) -> None:
    async def story(service: Inside) -> None:
        assert await decided(service, "/login", 3) == [True, True, False]
        told = await overrode(service, "login", limit=5)
        assert (told["rule"], told["limit"], told["window_ms"]) == ("login", 5, 3_600_000)
        # Two were used already, and a denial that is remembered must not stand in the way.
        assert await decided(service, "/login", 4) == [True, True, True, False]
        assert await decided(service, "/login", 3, "203.0.113.10") == [True, True, False]
        service.let_pass(60)
        await service.node.board.beat()
        assert await decided(service, "/login", 1) == [False]
        assert plain(await service.ask("GET", "/api/overrides"))["rule_overrides"] == {}

    inside(story, rules=rules)


def test_a_lower_one_holds_at_once_and_all_limits_of_the_rule_are_replaced(rules: str) -> None:
    async def story(service: Inside) -> None:
        await overrode(service, "login", limit=1)
        assert await decided(service, "/login", 2) == [True, False]
        await overrode(service, "search", limit=4, window=60)
        assert await decided(service, "/search", 5) == [True, True, True, True, False]

    inside(story, rules=rules)


def test_it_is_listed_shown_with_the_key_and_ended(rules: str) -> None:
    async def story(service: Inside) -> None:
        await overrode(service, "login", limit=9)
        plain(await service.ask("PUT", f"/api/overrides/{IP}", {"limit": 7, "ttl": 60}))
        listed = plain(await service.ask("GET", "/api/overrides"))
        assert listed["overrides"][IP]["limit"] == 7
        assert listed["rule_overrides"]["login"][IP]["limit"] == 9
        found = plain(await service.ask("GET", f"/api/keys/{IP}"))
        assert [(one["rule"], one["limit"]) for one in found["rule_overrides"]] == [("login", 9)]
        (login,) = [one for one in found["limits"] if one["rule"] == "login"]
        assert (login["from"], login["limit"], login["remaining"]) == ("override", 9, 9)
        explained = plain(
            await service.ask("POST", "/api/explain", {"request": {"path": "/login", "ip": IP}})
        )
        assert [one["limit"] for one in explained["answers"]] == [9]
        plain(await service.ask("DELETE", f"/api/overrides/{IP}?rule=login"))
        plain(await service.ask("DELETE", f"/api/overrides/{IP}?rule=login"), 404)
        listed = plain(await service.ask("GET", "/api/overrides"))
        assert (list(listed["overrides"]), listed["rule_overrides"]) == ([IP], {})
        assert await decided(service, "/login", 3) == [True, True, False]

    inside(story, rules=rules)


def test_a_reset_forgets_what_was_used_under_it(rules: str) -> None:
    async def story(service: Inside) -> None:
        await overrode(service, "login", limit=1, window=60, algorithm="token_bucket")
        assert await decided(service, "/login", 2) == [True, False]
        plain(await service.ask("POST", "/api/reset", {"key": IP, "rule": "login"}))
        assert await decided(service, "/login", 2) == [True, False]

    inside(story, rules=rules)


@pytest.mark.parametrize(
    "fields, status, says",
    [
        ({"rule": "nobody", "limit": 1}, 404, "no such rule"),
        ({"rule": "export", "limit": 1}, 422, "counts by the calendar"),
        ({"rule": "", "limit": 1}, 422, "at least 1"),
        ({"rule": "login"}, 422, "limit"),
    ],
)
def test_what_cannot_be_overridden_is_refused_and_changes_nothing(
    rules: str, fields: dict[str, Any], status: int, says: str
) -> None:
    async def story(service: Inside) -> None:
        answer = await service.ask("PUT", f"/api/overrides/{IP}", {"ttl": 60, **fields})
        assert (answer.status_code, says in answer.text) == (status, True), answer.text
        listed = plain(await service.ask("GET", "/api/overrides"))
        assert listed == {"overrides": {}, "rule_overrides": {}}

    inside(story, rules=rules)


def test_nodes_on_one_redis_follow_it(redis_server: RedisServer, rules: str) -> None:
    async def set_it(service: Inside) -> None:
        assert await decided(service, "/login", 3) == [True, True, False]
        await overrode(service, "login", limit=4)

    async def follow_it(service: Inside) -> None:
        await service.node.board.beat()
        assert await decided(service, "/login", 3) == [True, True, False]

    inside(set_it, engine=redis_server.url, rules=rules, node_id="a")
    inside(follow_it, engine=redis_server.url, rules=rules, node_id="b")
