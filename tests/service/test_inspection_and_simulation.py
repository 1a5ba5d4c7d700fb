"""`/api/keys`, `/api/simulate` and the figures that nodes share: what the dashboard asks."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from headgate.regions.rights_figures import RightsFigures
from headgate.service.telemetry.recent_figures import (
    NodeFigures,
    RecentFigures,
    RuleRates,
    combined,
    percentile_us,
)
from headgate.service.telemetry.recorder import BUCKETS_NS, Recorder
from tests.service.inside import Inside, inside

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.redis import RedisServer

LOGIN = "rules: [{rule_id: login, identifier: ip_address, rate: 2/hour, match: {path_pattern: /login}}]\n"


async def looked_at(service: Inside, key: str) -> dict[str, Any]:
    answer = await service.ask("GET", f"/api/keys/{key}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_an_unused_key_has_the_default_limit() -> None:
    async def story(service: Inside) -> None:
        found = await looked_at(service, "user:42")
        assert found["allowed"] is True
        assert found["passes_after"] == 0.0
        assert found["why"] == "100 left of 100 per minute"
        (limit,) = found["limits"]
        assert (limit["from"], limit["algorithm"], limit["in_use"]) == (
            "default",
            "adaptive",
            False,
        )
        assert [one["algorithm"] for one in limit["candidates"]] == [
            "sliding_window",
            "token_bucket",
            "exponential_backoff",
        ]
        assert [one["decides"] for one in limit["candidates"]] == [True, False, False]
        assert found["complete"] is True

    inside(story)


def test_looking_takes_nothing_and_each_candidate_speaks_for_itself() -> None:
    async def story(service: Inside) -> None:
        for _ in range(30):
            await service.ask("POST", "/check", {"key": "k", "limit": 100, "window": 60, "cost": 4})
        first, second = await looked_at(service, "k"), await looked_at(service, "k")
        assert first["allowed"] is second["allowed"] is False
        window, bucket, backoff = second["limits"][0]["candidates"]
        assert window["used"] == 100
        assert not window["allowed"]
        assert window["passes_after"] > bucket["passes_after"] > 0  # A bucket gives back at once.
        assert backoff["used"] == 100

    inside(story, default_limit=100)


def test_rules_that_count_the_key_are_shown_and_say_when_it_passes(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(LOGIN)

    async def story(service: Inside) -> None:
        for _ in range(3):
            await service.ask("POST", "/decide", {"path": "/login", "ip": "203.0.113.9"})
        found = await looked_at(service, "203.0.113.9")
        (login,) = [one for one in found["limits"] if one["rule"] == "login"]
        assert (login["used"], login["limit"], login["from"]) == (2, 2, "rule")
        assert found["allowed"] is False
        assert found["why"] == "login allows 2 per hour, and 2 are used"
        assert 0 < found["passes_after"] <= 2 * 3_600

    inside(story, rules=str(rules))


def test_bans_and_overrides_are_shown_with_who_set_them() -> None:
    async def story(service: Inside) -> None:
        await service.ask("PUT", "/api/bans/k", {"reason": "scraper"})
        await service.ask("PUT", "/api/overrides/k", {"limit": 7, "window": 60, "ttl": 60})
        found = await looked_at(service, "k")
        assert (found["allowed"], found["passes_after"]) == (False, None)
        assert found["why"] == "banned by anybody: scraper"
        assert found["ban"]["reason"] == "scraper"
        assert found["override"]["limit"] == 7
        (limit,) = found["limits"]
        assert (limit["from"], limit["limit"]) == ("override", 7)

    inside(story)


def test_a_limit_that_denies_the_key_is_shown_although_the_default_shares_its_count() -> None:
    async def story(service: Inside) -> None:
        for _ in range(4):
            await service.ask("POST", "/check", {"key": "k", "limit": 3, "window": 60})
        found = await looked_at(service, "k")
        assert found["allowed"] is False
        assert found["why"] == "the limit in checks allows 3 per minute, and 3 are used"
        assert [(one["from"], one["allowed"]) for one in found["limits"]] == [
            ("default", True),
            ("check", False),
        ]
        assert (await looked_at(service, "another"))["allowed"] is True

    inside(story, default_limit=100)


def test_a_limit_that_only_checks_name_is_found_in_memory() -> None:
    async def story(service: Inside) -> None:
        await service.ask("POST", "/check", {"key": "k", "limit": 5, "window": 10})
        found = await looked_at(service, "k")
        named = [one for one in found["limits"] if one["from"] == "check"]
        assert [(one["limit"], one["window"], one["used"]) for one in named] == [(5, 10.0, 1)]

    inside(story)


@pytest.mark.parametrize("namespace", ["", "apart"])
def test_the_candidates_are_asked_in_redis_too(redis_server: RedisServer, namespace: str) -> None:
    async def story(service: Inside) -> None:
        for _ in range(3):
            await service.ask("POST", "/check", {"key": "k"})
        found = await looked_at(service, "k")
        assert found["allowed"] is True
        assert found["complete"] is False
        assert [one["used"] for one in found["limits"][0]["candidates"]] == [3, 3, 3]

    inside(story, engine=redis_server.url, namespace=namespace, default_window=3_600.0)


async def simulated(service: Inside, **body: Any) -> list[dict[str, Any]]:
    answer = await service.ask("POST", "/api/simulate", body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.mark.slow
def test_a_simulation_is_real_traffic_and_reports_its_results() -> None:
    """It takes as long as it was told to."""

    async def story(service: Inside) -> None:
        told = await simulated(service, shape="own", key="sim:a", rate=100, seconds=0.3, limit=10)
        assert [one["type"] for one in told if one["type"] != "switch"] == [
            "started",
            "second",
            "ended",
        ]
        assert told[0]["planned"] == 30
        ended = told[-1]
        assert (ended["why"], ended["sent"], ended["allowed"], ended["denied"]) == (
            "done",
            30,
            10,
            20,
        )
        assert told[-2]["last"]["key"] == "sim:a"
        assert service.node.recorder.totals == (30, 20)

    inside(story)


@pytest.mark.slow
def test_of_simulations_that_begin_at_once_no_more_run_than_may() -> None:
    async def story(service: Inside) -> None:
        body = {"shape": "own", "rate": 5, "seconds": 0.2}
        for _ in range(2):  # Those that have ended make room.
            asked = [service.ask("POST", "/api/simulate", body) for _ in range(12)]
            answers = await asyncio.gather(*asked)
            statuses = [answer.status_code for answer in answers]
            assert sorted(statuses) == [200] * 4 + [409] * 8

    inside(story)


def test_a_simulation_spreads_over_its_keys() -> None:
    """As above."""

    async def story(service: Inside) -> None:
        told = await simulated(service, shape="own", rate=100, seconds=0.2, keys=4, limit=2, cost=2)
        assert told[-1]["allowed"] == 4
        assert told[0]["key"].startswith("sim:")

    inside(story)


@pytest.mark.parametrize(
    "body, field",
    [
        ({"shape": "own", "key": "user:42"}, "key"),
        ({"shape": "flood"}, "shape"),
        ({"shape": "own", "rate": 201}, "rate"),
        ({"shape": "own", "seconds": 61}, "seconds"),
        ({"shape": "own", "keys": 101}, "keys"),
        ({"shape": "steady", "algorithm": "magic"}, "algorithm"),
        ({"shape": "steady", "more": 1}, "more"),
    ],
)
def test_an_invalid_simulation_is_refused(body: dict[str, Any], field: str) -> None:
    async def story(service: Inside) -> None:
        answer = await service.ask("POST", "/api/simulate", body)
        assert answer.status_code == 422, answer.text
        assert field in answer.text
        assert service.node.recorder.totals.requests == 0

    inside(story)


def test_the_simulator_can_be_turned_off() -> None:
    async def story(service: Inside) -> None:
        answer = await service.ask("POST", "/api/simulate", {"shape": "steady"})
        assert answer.status_code == 404
        assert (await service.ask("GET", "/api/live")).json()["hello"]["simulator"] is False

    inside(story, simulator="off")


def test_without_the_dashboard_there_is_no_feed() -> None:
    async def story(service: Inside) -> None:
        assert (await service.ask("GET", "/api/live")).status_code == 404
        assert (await service.ask("POST", "/api/live/ticket", {})).status_code == 404

    inside(story, dashboard=False)


def test_figures_of_nodes_add_up_and_survive_the_board() -> None:
    one = NodeFigures(3.0, 1.0, 0.0, 0.0, {"login": RuleRates(2.0, 1.0, 0.5)}, (1,) * 17, 4)
    other = NodeFigures(1.0, 0.0, 1.0, 0.0, {"": RuleRates(1.0)}, (2,) * 17, 4, uncounted=0.5)
    assert NodeFigures.from_bytes(one.to_bytes())._replace(latency=(1,) * 17) == one
    assert NodeFigures.from_bytes(other.to_bytes()).uncounted == 0.5
    both = combined([one, other])
    assert both.uncounted == 0.5
    assert (both.requests, both.denied, both.degraded) == (4.0, 1.0, 1.0)
    assert both.rules == {"login": RuleRates(2.0, 1.0, 0.5), "": RuleRates(1.0)}
    assert both.latency == (3,) * 17


def test_rights_of_nodes_add_up_and_older_nodes_report_none() -> None:
    one, other = RightsFigures(), RightsFigures()
    one.asked["us"], one.received["us"], other.given["us"] = 2, 9, 4
    other.lose(0, 5)
    assert other.lost_at_us is None
    one.lose(7, 1_000)
    told = NodeFigures.from_bytes(NodeFigures(rights=one).to_bytes())
    assert told.rights == one
    both = combined([told, NodeFigures(rights=other), NodeFigures()]).rights
    assert both is not None
    assert (both.asked["us"], both.received["us"], both.given["us"]) == (2, 9, 4)
    assert (both.lost, both.lost_at_us) == (7, 1_000)
    older = json.loads(NodeFigures(1.0, uncounted=0.5).to_bytes())
    for many, uncounted in ((7, 0.0), (9, 0.0), (10, 0.5)):
        read = NodeFigures.from_bytes(json.dumps(older[:many]).encode())
        assert (read.requests, read.uncounted, read.rights) == (1.0, uncounted, None)


def test_percentiles_lie_in_their_bucket() -> None:
    counts = [0] * (len(BUCKETS_NS) + 1)
    assert percentile_us(counts, 0.99) is None
    counts[3], counts[6] = 98, 2
    assert 50 < (percentile_us(counts, 0.5) or 0) <= 100
    assert 500 < (percentile_us(counts, 0.99) or 0) <= 1_000
    assert percentile_us([0] * len(BUCKETS_NS) + [1], 0.5) == BUCKETS_NS[-1] // 1_000


def test_figures_are_those_of_ten_seconds() -> None:
    async def story(service: Inside) -> None:
        now = 0.0
        recorder: Recorder = service.node.recorder
        figures = RecentFigures(recorder, lambda: now)
        for second in range(1, 16):
            now = float(second)
            if second <= 5:
                await service.ask("POST", "/check", {"key": "k", "limit": 2})
            figures.note()
            if second == 5:
                assert figures.figures().rules[""] == RuleRates(2 / 5, 3 / 5, 0.0)
        assert figures.figures().rules == {}
        assert figures.figures().requests == 0.0

    inside(story)
