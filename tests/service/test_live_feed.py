"""The live feed of real nodes that share a Redis: the same figures everywhere, and the truth when it is away."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.servers.fixtures import installed
from tests.servers.process import wait_until
from tests.servers.redis import standalone
from tests.service.running import Service, service

LOGIN = {"method": "POST", "path": "/login", "ip": "203.0.113.9"}


def live(node: Service) -> dict[str, Any]:
    status, _, told = node.ask("GET", "/api/live")
    assert status == 200, told
    found: dict[str, Any] = told
    return found


@pytest.mark.slow
def test_every_node_reports_all_nodes_and_only_itself_while_the_store_is_down() -> None:
    """Nodes exchange what they know once a second, and a store is killed and started."""
    with (
        installed(),
        standalone("valkey-9") as redis,
        service("--engine", redis.url, "--set", "node_id=one", "--set", "on_error=closed") as one,
        service("--engine", redis.url, "--set", "node_id=two", "--set", "on_error=closed") as two,
    ):
        wait_until(
            lambda: live(one)["tables"]["nodes"]["total"] == 2, "the nodes meet", within_s=30
        )

        def both_are_known() -> bool:
            one.ask("POST", "/decide", LOGIN)
            two.ask("POST", "/decide", LOGIN)
            told = live(two)
            rows = {row["id"]: row for row in told["tables"]["nodes"]["rows"]}
            login = [row for row in told["tables"]["rules"]["rows"] if row["rule"] == "login"]
            return (
                told["tick"]["seen"] == "cluster"
                and told["tick"]["choice"]["agree"] == [2, 2]
                and all((row["req_per_sec"] or 0) > 0 for row in rows.values())
                and bool(login)
                and login[0]["denied"] > 0
                and "203.0.113.9" in {row["key"] for row in told["tables"]["blocked"]["rows"]}
            )

        wait_until(both_are_known, "a node tells of both", within_s=30)
        redis.kill()

        def alone_is_told() -> bool:
            tick = live(one)["tick"]
            return bool(tick["seen"] == "node" and tick["verdict"]["level"] == "bad")

        wait_until(alone_is_told, "the outage is told", within_s=30)
        told = live(one)
        assert told["tick"]["store"]["state"] == "down"
        assert told["tick"]["verdict"]["text"].startswith("Redis does not answer")
        assert (
            "It recovers automatically when Redis is back."
            in told["tick"]["verdict"]["problems"][0]["text"]
        )
        assert {
            row["gives"] for row in told["tables"]["rules"]["rows"] if row["rule"] == "login"
        } == {"nothing"}
        began = time.time()
        redis.start()
        wait_until(lambda: live(one)["tick"]["seen"] == "cluster", "it ends by itself", within_s=30)
        wait_until(
            lambda: live(one)["tick"]["verdict"]["level"] != "bad", "all is told well", within_s=30
        )
        spans = live(one)["hello"]["history"]["alone"]
        assert spans
        assert spans[-1][0] <= began
