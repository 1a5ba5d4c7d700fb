"""A real Redis that goes away and comes back: every answer in time, by the rules' word, and no restart."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.fixtures import on_flavours
from tests.servers.process import wait_until
from tests.service.raw import Raw, post
from tests.service.running import Service, service

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.redis import RedisServer

DEADLINE = 0.25
SLACK = 0.5
"""For a machine that is busy with other tests; without any, answers come some milliseconds after the deadline."""

RULES = {
    "rules": [
        {"rule_id": "login", "match": {"path_pattern": "/login"}, "identifier": "ip_address",
         "rate": "5/minute", "on_error": "closed"},
        {"rule_id": "pages", "match": {"path_pattern": "/pages/*"}, "identifier": "ip_address",
         "rate": "5/minute", "on_error": "open"},
        {"rule_id": "other", "match": {"path_pattern": "/other"}, "identifier": "ip_address",
         "rate": "5/minute"},
        {"rule_id": "told", "match": {"path_pattern": "/told"}, "identifier": "ip_address",
         "rate": "5/minute", "on_error": "raise"},
    ]
}  # fmt: skip


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_a_store_outage_costs_no_caller_more_than_the_deadline(
    redis_server: RedisServer, tmp_path: Path, fault: str
) -> None:
    """Waits for deadlines and for the store to come back."""
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps(RULES))
    engine = f"{redis_server.url}?deadline={DEADLINE}"
    with service("--engine", engine, "--rules", str(rules)) as one, Raw(one.port) as raw:
        login = {"path": "/login", "ip": "203.0.113.9"}
        assert raw.send(post({"key": "k", "limit": 5})).answer().json["remaining"] == 4
        assert raw.send(post(login, "/decide")).answer().json["remaining"] == 4

        redis_server.kill() if fault == "killed" else redis_server.stop()
        for _ in range(3):
            began = time.monotonic()
            answer = raw.send(post({"key": "k", "limit": 5})).answer()
            assert time.monotonic() - began < DEADLINE + SLACK
            assert (answer.status, answer.json["source"]) == (200, "fallback")
            assert answer.json["degraded"] is True
            assert answer.headers["x-ratelimit-degraded"] == "fallback"
        _, _, batch = one.ask("POST", "/check/batch", {"checks": [{"key": "k"}, {"key": "k2"}]})
        assert [found["source"] for found in batch["decisions"]] == ["fallback"] * 2
        refused = raw.send(post({"path": "/told", "ip": "203.0.113.9"}, "/decide")).answer()
        assert (refused.status, refused.json["code"]) == (503, "store-unavailable")
        assert refused.headers["retry-after"] == "1"

        told = [
            raw.send(post({"path": path, "ip": "203.0.113.9"}, "/decide")).answer()
            for path in ("/login", "/pages/1", "/other")
        ]
        assert [one.status for one in told] == [200] * 3
        assert [(one.json["allowed"], one.json["source"]) for one in told] == [
            (False, "closed"),
            (True, "open"),
            (True, "fallback"),
        ]
        assert all(one.json["degraded"] for one in told)
        assert one.ask("GET", "/health/live")[0] == 200
        wait_until(lambda: verdict(one)["level"] == "bad", "the page says that it does not answer")
        (away, *_) = verdict(one)["problems"]
        assert "Limits hold, less exactly: this node goes on alone" in away["text"]
        assert "login denies everybody. pages lets everybody pass." in away["text"]

        if fault == "killed":
            redis_server.start()
        else:
            redis_server.resume()
        wait_until(
            lambda: raw.send(post({"key": "k2", "limit": 5})).answer().json["source"] == "engine",
            "the store is asked again",
        )
        wait_until(lambda: "the circuit breaker is closed after " in one.log, "the log says so")
        changes = ("the circuit breaker is", "the store does not answer", "the store answers again")
        assert [one.log.count(words) for words in changes] == [2, 0, 0]
        wait_until(lambda: verdict(one)["level"] != "bad", "the page says so, too", within_s=8)


def verdict(one: Service) -> dict[str, Any]:
    found: dict[str, Any] = one.ask("GET", "/api/live")[2]["tick"]["verdict"]
    return found


@on_flavours("redis_server", "redis-7.0")
def test_it_starts_without_its_store_and_works_when_that_comes(redis_server: RedisServer) -> None:
    redis_server.kill()
    with service("--engine", f"{redis_server.url}?deadline={DEADLINE}") as one:
        assert one.ask("POST", "/check", {"key": "k"})[2]["source"] == "fallback"
        redis_server.start()
        wait_until(
            lambda: one.ask("POST", "/check", {"key": "k"})[2]["source"] == "engine",
            "the store is asked",
        )


def test_a_password_is_in_no_output(tmp_path: Path) -> None:
    """Nobody listens there: the failing run tells a lot, but not the secret."""
    canary = "canary-4711"
    engine = f"redis://user:{canary}@127.0.0.1:1/0?deadline=0.2"
    environment = {"HEADGATE_ENGINE": engine, "HEADGATE_STATE_DIR": str(tmp_path)}
    with service("--log-level", "debug", environment=environment) as one:
        seen = [str(one.ask("POST", "/check", {"key": "k"}))]
        seen += [str(one.ask("GET", path)) for path in ("/", "/docs", "/openapi.json", "/health")]
        assert all(canary not in text for text in seen)
        assert "redis:" not in seen[1]  # Not even where the store is.
        assert "does not answer" in one.log
    assert canary not in one.log


def test_rules_that_answer_for_a_lost_store_do_not_hide_that_it_is_lost(tmp_path: Path) -> None:
    """Nobody listens on port 1; the board is elsewhere, so only decisions can tell."""
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps(RULES))
    options = ("--engine", "redis://127.0.0.1:1", "--set", "board=memory://", "--rules", str(rules))
    with service(*options) as one:
        page = {"path": "/pages/1", "ip": "203.0.113.9"}
        for _ in range(3):
            assert one.ask("POST", "/decide", page)[2]["source"] == "open"
        assert one.ask("GET", "/health")[2]["status"] == "degraded"
        assert one.ask("POST", "/check", {"key": "k"})[2]["source"] == "fallback"
        assert one.ask("POST", "/decide", {"path": "/none"})[2]["allowed"] is True
        assert one.ask("POST", "/decide", page)[2]["degraded"] is True
        assert one.log.count("the store does not answer") == 1
        assert "the store answers again" not in one.log
