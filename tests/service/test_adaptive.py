"""Adaptive limits in the service: checks and rules follow what all nodes have agreed on, and say who decided."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

from headgate.adaptive.monitor import OVERALL
from headgate.adaptive.selector import BACKOFF, BUCKET, WINDOW
from tests.servers.fixtures import on_flavours
from tests.servers.process import patient
from tests.service.inside import Inside, inside

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.servers.redis import RedisServer


async def until(what: Callable[[], bool], seconds: float = 15.0) -> None:
    ends = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < ends, "it took too long"
        await asyncio.sleep(0.02)  # The board beats by the real clock.


async def check(service: Inside, key: str = "k", **fields: Any) -> Any:
    return (await service.ask("POST", "/check", {"key": key, **fields})).json()


async def pin(service: Inside, scope: str, algorithm: str) -> None:
    answer = await service.ask("PUT", f"/api/choice/{scope or '*'}", {"algorithm": algorithm})
    assert answer.status_code == 200, answer.text


def test_a_burst_makes_the_bucket_decide_and_the_answer_says_so() -> None:
    async def story(service: Inside) -> None:
        assert (await check(service))["algorithm"] == WINDOW
        await asyncio.sleep(1.1)  # So that the burst has a quiet second before it.
        body = {"checks": [{"key": "k"}] * 120}
        decisions = (await service.ask("POST", "/check/batch", body)).json()["decisions"]
        assert sum(one["allowed"] for one in decisions) == 99
        await until(lambda: service.node.active_algorithm == BUCKET)
        answer = await check(service)
        assert answer["algorithm"] == BUCKET
        assert answer["remaining"] <= 10  # What has flowed back since; no fresh allowance.
        traffic = (await service.ask("GET", "/api/traffic")).json()
        assert traffic["active_algorithm"] == BUCKET
        assert "times the mean" in service.node.control.deciding().reason

    inside(story)


def test_a_configured_algorithm_stays() -> None:
    async def story(service: Inside) -> None:
        assert (await check(service))["algorithm"] == "fixed_window"
        assert service.node.active_algorithm == "fixed_window"

    inside(story, default_algorithm="fixed_window")


def rules_file(tmp_path: Path) -> str:
    rules = [
        {
            "rule_id": name,
            "match": {"path_pattern": f"/{name}"},
            "identifier": "user_id",
            "rate": "5/minute",
            "algorithm": algorithm,
        }
        for name, algorithm in (("a", "adaptive"), ("b", "adaptive"), ("c", "sliding_window"))
    ]
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(rules))
    return str(path)


def test_rules_follow_their_own_choice_before_the_overall_one(tmp_path: Path) -> None:
    async def story(service: Inside) -> None:
        async def decide(path: str) -> Any:
            body = {"path": path, "user_id": "u"}
            return (await service.ask("POST", "/decide", body)).json()

        async def deciders() -> list[str]:
            return [(await decide(f"/{name}"))["algorithm"] for name in "abc"]

        await service.node.board.beat()
        assert service.node.rule_traffic.adaptive == {"a", "b"}
        assert await deciders() == [WINDOW] * 3
        await pin(service, OVERALL, BUCKET)
        assert await deciders() == [BUCKET, BUCKET, WINDOW]
        await pin(service, "a", BACKOFF)
        assert await deciders() == [BACKOFF, BUCKET, WINDOW]
        for _ in range(8):
            await decide("/b")
        await service.node.board.beat()
        counted = service.node.control.scope("b")
        assert (counted.requests, counted.denied) == (11, 6)

    inside(story, rules=rules_file(tmp_path))


@on_flavours("redis_server", "redis-7.0")
def test_denials_are_remembered_while_they_hold_and_left_behind_by_a_switch(
    redis_server: RedisServer,
) -> None:
    async def story(service: Inside) -> None:
        for _ in range(3):
            assert (await check(service, limit=3, window=3600))["allowed"]
        sources = [(await check(service, limit=3, window=3600))["source"] for _ in range(3)]
        assert sources == ["engine", "cache", "cache"]
        await pin(service, OVERALL, BUCKET)
        answer = await check(service, limit=3, window=3600)
        assert (answer["algorithm"], answer["source"]) == (BUCKET, "engine")
        assert not answer["allowed"]
        await pin(service, OVERALL, BACKOFF)
        answers = [await check(service, limit=3, window=3600) for _ in range(3)]
        assert {(one["algorithm"], one["source"]) for one in answers} == {(BACKOFF, "engine")}

    inside(story, engine=patient(redis_server.url))


def test_all_checks_of_a_batch_name_one_decider() -> None:
    async def story(service: Inside) -> None:
        await check(service)  # Bound, so that the batch is taken in one go.
        await pin(service, OVERALL, BUCKET)
        body = {"checks": [{"key": f"k{i}"} for i in range(5)]}
        decisions = (await service.ask("POST", "/check/batch", body)).json()["decisions"]
        assert {one["algorithm"] for one in decisions} == {BUCKET}
        checks = service.node.recorder.checks()
        assert sum(many for series, many in checks.items() if series.algorithm == BUCKET) == 5

    inside(story)


def test_a_pin_goes_before_traffic_is_audited_and_can_be_removed(tmp_path: Path) -> None:
    async def story(service: Inside) -> None:
        await service.node.board.beat()
        body = {"algorithm": BACKOFF, "reason": "an attack", "ttl": 3600}
        pinned = (await service.ask("PUT", "/api/choice/*", body)).json()
        assert (pinned["algorithm"], pinned["pinned_by"]) == (BACKOFF, "anybody")
        assert pinned["reason"] == "pinned by anybody: an attack"
        assert 3590 < pinned["pinned_until"] - pinned["since"] <= 3600
        assert pinned["dwell_left"] == 0
        assert (await check(service))["algorithm"] == BACKOFF
        found = (await service.ask("GET", "/api/choice")).json()
        assert found["overall"] == pinned
        assert {name: one["algorithm"] for name, one in found["rules"].items()} == {
            "a": BACKOFF,
            "b": BACKOFF,
        }
        traffic = (await service.ask("GET", "/api/traffic")).json()
        assert (traffic["active_algorithm"], traffic["reason"]) == (BACKOFF, pinned["reason"])
        removed = (await service.ask("DELETE", "/api/choice/*?reason=over")).json()
        assert (removed["pinned_by"], removed["epoch"]) == (None, pinned["epoch"] + 1)
        assert 4 < removed["dwell_left"] <= 5
        assert (await service.ask("DELETE", "/api/choice/*")).status_code == 404
        audited = [one["action"] for one in service.node.audit.recent(10)]
        assert {"choice.pin", "choice.unpin"} <= set(audited)

    inside(story, rules=rules_file(tmp_path))


def test_a_pin_that_makes_no_sense_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def story(service: Inside) -> None:
        await service.node.board.beat()
        for scope, body, status in (
            ("*", {"algorithm": "fixed_window"}, 422),
            ("*", {"algorithm": BUCKET, "ttl": 0}, 422),
            ("*", {"algorithm": BUCKET, "why": "x"}, 422),
            ("c", {"algorithm": BUCKET}, 404),  # It is not adaptive.
            ("none", {"algorithm": BUCKET}, 404),
        ):
            answer = await service.ask("PUT", f"/api/choice/{scope}", body)
            assert (scope, answer.status_code) == (scope, status)
        assert service.node.control.deciding().epoch == 0

    inside(story, rules=rules_file(tmp_path))


def test_a_pin_ends_by_itself() -> None:
    async def story(service: Inside) -> None:
        await service.ask("PUT", "/api/choice/*", {"algorithm": BACKOFF, "ttl": 0.5})
        assert service.node.active_algorithm == BACKOFF
        await until(lambda: not service.node.control.deciding().pinned)
        assert "no longer pinned" in service.node.control.deciding().reason

    inside(story)


@on_flavours("redis_server", "redis-7.0")
def test_a_pin_on_one_node_holds_on_the_others_and_survives_their_proposals(
    redis_server: RedisServer,
) -> None:
    async def story(one: Inside) -> None:
        async with Inside(engine=patient(redis_server.url), node_id="two", namespace="pins") as two:
            await pin(one, OVERALL, BUCKET)
            await pin(two, OVERALL, BACKOFF)  # It may not have heard of the first one.
            await until(
                lambda: (
                    one.node.control.deciding() == two.node.control.deciding()
                    and one.node.active_algorithm == BACKOFF
                )
            )

    inside(story, engine=patient(redis_server.url), node_id="one", namespace="pins")
