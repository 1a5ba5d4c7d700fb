"""What people are told of rights that regions hold and pass on, by services on real servers."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from headgate.cli import main
from tests.servers.process import HOST, free_ports, wait_until
from tests.service.region_stores import store_place
from tests.service.running import service
from tests.service.test_regions import status_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.service.running import Service

RULES = """
rules:
  - rule_id: api
    identifier: user_id
    rate: 60/10s
    algorithm: fixed_window
    consistency: escrow
    on_error: closed
"""
WITHIN_S = 60.0


@contextmanager
def two_regions(folder: Path, store: str) -> Iterator[tuple[Service, Service]]:
    """Two services, each with a server of this kind, and nothing else."""
    rules = folder / "rules.yaml"
    rules.write_text(RULES)
    ports = free_ports(2)
    with store_place(store) as first, store_place(store) as second:

        def one(region: str, other: str, url: str, port: int, to: int) -> Any:
            options = ["--engine", url, "--resp-port", str(port), "--rules", str(rules)]
            said = (f"region={region}", f"regions={other}=headgate://{HOST}:{to}")
            return service(*options, *(word for one in said for word in ("--set", one)))

        with (
            one("eu", "us", first.url, *ports) as eu,
            one("us", "eu", second.url, *reversed(ports)) as us,
        ):
            yield eu, us


def rights_of(one: Service, user: str) -> dict[str, Any]:
    """What `explain` says of a user's rights."""
    explained = one.ask("POST", "/api/explain", {"request": {"user_id": user}})[2]
    rights: dict[str, Any] = explained["rights"]["api"]
    return rights


def figure(one: Service, name: str) -> float:
    """A figure of the service; with a label, that of its only region."""
    text = one.ask("GET", "/metrics")[2]
    (value,) = re.findall(rf"^headgate_{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
    return float(value)


@pytest.mark.heavy
@pytest.mark.parametrize("store", ["redis", "etcd"])
def test_people_see_where_rights_came_from_and_went(tmp_path: Path, store: str) -> None:
    """Of a window of ten seconds: the next one is tried if it ends meanwhile."""
    with two_regions(tmp_path, store) as (eu, us):
        seen: dict[str, Any] = {}

        def moved() -> bool:
            user = f"u{len(seen)}"
            seen[user] = None
            if rights_of(eu, user)["share"] != 30 or rights_of(us, user)["share"] != 30:
                return False  # A new store has none of windows that have begun.
            for _ in range(25):
                eu.ask("POST", "/decide", {"user_id": user})
            for _ in range(20):
                here, there = rights_of(eu, user), rights_of(us, user)
                is_received = bool(here["received"])
                if is_received and there["given"] == {"eu": here["received"]["us"]}:
                    seen["last"] = here, there  # No grant came between the two reads.
                    return bool(here["admitted"] == 25)
            return False

        wait_until(moved, "rights have moved", within_s=WITHIN_S)
        here, there = seen["last"]
        units = here["received"]["us"]
        assert here == {
            "limit": 60, "share": 30, "received": {"us": units}, "given": {}, "admitted": 25,
            "left": 5 + units,
            "said": (
                f"this region may admit {5 + units} more: it began with 30, got {units} from us, and admitted 25"
            ),
        }  # fmt: skip
        assert there == {
            "limit": 60, "share": 30, "received": {}, "given": {"eu": units}, "admitted": 0,
            "left": 30 - units,
            "said": (
                f"this region may admit {30 - units} more: it began with 30, gave {units} to eu, and admitted 0"
            ),
        }  # fmt: skip

        fresh = f"u{len(seen)}"
        us.ask("POST", "/decide", {"user_id": fresh})
        (limit,) = [
            one for one in us.ask("GET", f"/api/keys/{fresh}")[2]["limits"] if one["rule"] == "api"
        ]
        assert limit["remaining"] == limit["rights"]["left"] <= 30

        def is_on_the_dashboard() -> bool:
            tick = eu.ask("GET", "/api/live")[2]["tick"]
            rights = tick["regions"]["rights"]
            assert {"Region eu", "Rights"} <= {one["name"] for one in tick["parts"]}
            assert rights["lost"] == 0
            return [(one["region"], one["received"] >= units) for one in rights["others"]] == [
                ("us", True)
            ]

        wait_until(is_on_the_dashboard, "a second has ended", within_s=WITHIN_S)

        told = eu.ask("GET", "/api/regions")[2]
        assert told["rights"]["lost"] == 0
        assert told["rights"]["from_window"]
        (between,) = [one["rights"] for one in told["others"]]
        assert between["asked"] >= 1
        assert between["received"] >= units
        assert between["given"] == 0
        assert figure(eu, "region_rights_received_total") == between["received"]
        assert figure(us, "region_rights_given_total") == between["received"]
        assert figure(eu, "region_rights_lost_total") == 0
        assert figure(eu, "region_rights_asked_total") == between["asked"]
        assert re.search(r"us +asked \d+ times.*, got \d+, gave 0", status_of(eu))
        assert re.search(r"eu +asked 0 times, got 0, gave \d+", status_of(us))


@pytest.mark.heavy
def test_an_operator_takes_rights_back_and_gives_them_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command line, which needs no body for this, while the service wants every body to be JSON."""
    with two_regions(tmp_path, "redis") as (eu, _):
        url = f"http://{HOST}:{eu.port}"

        def run(*words: str) -> tuple[int, str]:
            code = main(["take-back", *words, "--reason", "fire", "--url", url])
            out, err = capsys.readouterr()
            return code, out + err

        assert run("us", "--store-is-stopped") == (
            0,
            "the others have the rights of us, in windows that begin in 5 s\n",
        )
        assert eu.ask("GET", "/api/regions")[2]["taken_back"] == ["us"]
        code, told = run("us", "--undo")
        assert (code, told.partition(",")[0]) == (0, "us has its rights again")
        assert eu.ask("GET", "/api/regions")[2]["taken_back"] == []
        code, told = run("mars", "--store-is-stopped")
        assert (code, "mars" in told) == (2, True)
