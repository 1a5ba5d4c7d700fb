"""Rule sets of any size, and requests for them: each world is another way in which rules can be many."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headgate import Request, RuleSet

if TYPE_CHECKING:
    from collections.abc import Callable

EVERYBODY = {
    "rule_id": "zz-everybody",
    "identifier": "ip_address",
    "rate": "1000000/minute",
    "priority": 900,
}
HEADERS = {
    "Host": "api.example.com",
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64)",
    "Accept": "text/html,application/xhtml+xml",
    "Accept-Encoding": "gzip, deflate, br",
    "Accept-Language": "en-US,en;q=0.5",
    "Connection": "keep-alive",
}


@dataclass(frozen=True)
class World:
    """How rules are told apart, and a request for the one of that number."""

    name: str
    match: Callable[[int], dict[str, Any]]
    request: Callable[[int], Request]

    def document(self, size: int) -> bytes:
        """`size` rules as a file would have them, the last of them for everybody."""
        rules = [
            {
                "rule_id": f"rule-{number:05}",
                "description": f"The rule of number {number}",
                "identifier": "ip_address",
                "rate": f"{1000 + number}/minute",
                "algorithm": "fixed_window",
                "match": self.match(number),
            }
            for number in range(size - 1)
        ]
        return json.dumps({"rules": [*rules, EVERYBODY]}).encode()

    def rules(self, size: int) -> RuleSet:
        """The same, read."""
        return RuleSet.parse(self.document(size), f"{self.name}.json")

    def requests(self, size: int, count: int, seed: int) -> list[Request]:
        """Requests for rules of such a set, drawn at random."""
        draw = random.Random(seed)
        return [self.request(draw.randrange(max(1, size - 1))) for _ in range(count)]


def _address(number: int) -> str:
    return f"10.{number // 65_536}.{number // 256 % 256}.{number % 256}"


def _request(number: int, path: str, **more: Any) -> Request:
    headers = {**HEADERS, **more.pop("headers", {})}
    return Request(
        "GET", path, ip=_address(number), host="api.example.com", headers=headers, **more
    )


def _path_pattern(number: int) -> str:
    end = ("*", "{id}/items", "list", "*/items/**")[number % 4]
    return f"/api/v{number % 3}/service-{number // 3}/{end}"


def _path(number: int) -> str:
    end = ("7/8", "7/items", "list", "7/items/8")[number % 4]
    return f"/api/v{number % 3}/service-{number // 3}/{end}"


WORLDS = (
    World(
        "paths",
        lambda number: {"path_pattern": _path_pattern(number), "methods": ["GET", "POST"]},
        lambda number: _request(number, _path(number)),
    ),
    World(
        "paths behind a gap",
        lambda number: {"path_pattern": f"/**/service-{number}/*"},
        lambda number: _request(number, f"/api/v1/service-{number}/list"),
    ),
    World(
        "one path, tenants by header",
        lambda number: {"path_pattern": "/api/**", "headers": {"X-Tenant": f"tenant-{number}"}},
        lambda number: _request(number, "/api/v1/list", headers={"X-Tenant": f"tenant-{number}"}),
    ),
    World(
        "one path, tenants by host",
        lambda number: {"path_pattern": "/api/**", "host": f"tenant-{number}.example.com"},
        lambda number: Request(
            "GET", "/api/v1/list", ip=_address(number), host=f"tenant-{number}.example.com"
        ),
    ),
    World(
        "ranges of addresses",
        lambda number: {"ip_subnet": f"{_address(number)}/32"},
        lambda number: _request(number, "/api/v1/list"),
    ),
    World(
        "descriptors of Envoy",
        lambda number: {"descriptors": {"tenant": f"tenant-{number}"}},
        lambda number: _request(number, "/", descriptors=(("tenant", f"tenant-{number}"),)),
    ),
)

HOSTILE = {
    "escaped letters": "/" + "%41" * 2_730,
    "escaped dots": "/%2e%2e" * 1_170,
    "steps back": "/a/.." * 1_638,
    "slashes": "/" * 8_192,
    "escaped slashes": "/" + "%2f" * 2_730,
    "escaped slashes and backslashes": "/" + "a%2f..%5c" * 910,
    "eight readings": "/" + "a;%2f..%5c" * 120 + "x" * 6_900,
    "256 segments in three readings": "/a%2fb%5cc" + "/x" * 200 + "%2f%5cx" * 27,
    "parameters": "/;" * 4_096,
    "escaped UTF-8": "/" + "%c3%a9" * 1_365,
    "raw UTF-8": "/" + "é" * 1_364,
    "too much raw UTF-8": "/" + "\N{GRINNING FACE}" * 8_000,
    "spaces": "/" + " " * 8_191,
    "broken at the end": "/" + "%41" * 2_729 + "%z",
    "256 segments": "/a" * 256,
    "256 segments of a rule": "/service-7" * 256,
    "too long": "/" + "a" * 1_000_000,
}
"""Paths that are as costly as 8 KB can be."""
