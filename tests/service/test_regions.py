"""Services in several regions, each on an engine of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.link import Link
from tests.servers.process import free_ports, wait_until
from tests.service.region_stores import store_place
from tests.service.running import service

if TYPE_CHECKING:
    from tests.service.running import Service

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-two-regions.md"
RULES = """
rules:
  - rule_id: api
    identifier: user_id
    rate: 100/hour
    algorithm: fixed_window
    consistency: {mode}
"""


def admitted(one: Service, many: int, by: str = "user_id") -> int:
    """How many of so many requests a service lets through."""
    answers = [one.ask("POST", "/decide", {by: "k1"}) for _ in range(many)]
    return sum(answer["allowed"] for _, _, answer in answers)


def test_services_in_two_regions_admit_the_limit_together(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES.format(mode="split"))
    weights = "region_weights=eu=3,us=1"
    options = ("--rules", str(rules), "--set", weights, "--set")
    with service(*options, "region=eu") as eu, service(*options, "region=us") as us:
        assert (admitted(eu, 80), admitted(us, 30)) == (75, 25)


def test_a_rule_for_regions_is_refused_without_them(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES.format(mode="split"))
    line = [sys.executable, "-m", "headgate", "serve", "--port", "0", "--rules", str(rules)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert "consistency split is for several regions, and there is one" in done.stderr


@pytest.mark.heavy
@pytest.mark.parametrize("engine", ["memory", "etcd"])
def test_two_regions_as_the_documentation_starts_them(tmp_path: Path, engine: str) -> None:
    """Hammer one key in both, cut the link, see what is said about it, heal it, and see the counts meet."""
    page = PAGE.read_text()
    (rules,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "rules.yaml").write_text(rules)
    lines = re.findall(r"^headgate serve (.*)$", page, re.MULTILINE)
    commands = [line for line in lines if ("etcd://" in line) == (engine == "etcd")]
    resp_ports = free_ports(2)
    with Link(resp_ports[1]) as to_us, Link(resp_ports[0]) as to_eu, ExitStack() as stack:
        ports = {"7379": str(resp_ports[0]), "7380": str(resp_ports[1])}
        if engine == "etcd":
            places = [stack.enter_context(store_place("etcd")) for _ in commands]
            ports |= {
                f"etcd://127.0.0.1:{n}379": one.url for n, one in zip("23", places, strict=True)
            }
        eu, us = (
            stack.enter_context(started(line, ports, way, tmp_path))
            for line, way in zip(commands, (to_us, to_eu), strict=True)
        )
        both = (eu, us)
        wait_until(lambda: all(link_of(one) == "up" for one in both), "both hear", within_s=30)
        assert [admitted(one, 20, "api_key") for one in both] == [20, 20]
        wait_until(lambda: [left(one) for one in both] == [60, 60], "counts meet", within_s=30)
        explained = eu.ask("POST", "/api/explain", {"request": {"api_key": "k1"}})[2]
        assert explained["admitted_by_region"] == {"partners": {"eu": 20, "us": 20}}

        for way in (to_us, to_eu):
            way.refuse()
            way.reset()
        wait_until(lambda: all(link_of(one) == "cut" for one in both), "it is cut", within_s=30)
        assert [admitted(one, 90, "api_key") for one in both] == [60, 60]
        told = status_of(eu)
        assert "us      CANNOT BE HEARD" in told
        assert "together at most 2 times the limit" in told
        assert 'headgate_region_up{region="us"} 0' in eu.ask("GET", "/metrics")[2]

        for way in (to_us, to_eu):
            way.mend()
        wait_until(lambda: all(link_of(one) == "up" for one in both), "it heals", within_s=30)
        wait_until(lambda: charged(eu) == charged(us) == 80, "each knows all", within_s=30)
        assert [left(one) for one in both] == [0, 0]
        assert "hears us" in status_of(eu)


def started(line: str, places: dict[str, str], way: Link, folder: Path) -> Any:
    """A service as a line of the page starts it, in places of its own; the link goes through a proxy."""
    words = line.split()
    resp_port = places[words[words.index("--resp-port") + 1]]
    others = words[-1].rpartition(":")[0]
    options = ["--rules", str(folder / "rules.yaml"), "--resp-port", resp_port]
    options += ["--set", words[words.index("--set") + 1], "--set", f"{others}:{way.port}"]
    if "--engine" in words:
        options += ["--engine", places[words[words.index("--engine") + 1]]]
    assert len(words) == len(options) + 2  # The page says nothing more but its port.
    return service(*options)


def link_of(one: Service) -> str:
    """How the link to the other region is."""
    return str(one.ask("GET", "/api/regions")[2]["others"][0]["link"])


def left(one: Service) -> int:
    """What is left of the key; looking takes nothing."""
    explained = one.ask("POST", "/api/explain", {"request": {"api_key": "k1"}})[2]
    return int(explained["answers"][0]["remaining"])


def charged(one: Service) -> float:
    """What was charged here for the other region."""
    text = one.ask("GET", "/metrics")[2]
    (units,) = re.findall(r"^headgate_region_units_charged_total\{.*\} (\S+)$", text, re.MULTILINE)
    return float(units)


def status_of(one: Service) -> str:
    """What `headgate status` prints."""
    line = [sys.executable, "-m", "headgate", "status", "--url", f"http://127.0.0.1:{one.port}"]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60).stdout
