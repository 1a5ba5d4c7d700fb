"""Every state that the dashboard can be in, as frames of the live feed, with invented traffic.

The frames are those of the service, field by field; `test_real_service` compares their shapes with what it really
sends.
"""

from __future__ import annotations

import copy
import math
import random
from dataclasses import dataclass, field
from typing import Any, Final

from headgate.service.live.verdict import Facts, verdict_of

Frame = dict[str, Any]

HOSTILE: Final = "<img src=x onerror=alert(1)>"
DENIED: Final = "ip:203.0.113.9"
SHARED: Final = "partner:globex"
"""A key whose limit regions share."""
THRESHOLDS: Final = {
    "burst": {"enter": 3.0, "leave": 1.5},
    "abuse": {"enter": 0.5, "leave": 0.3},
    "abuse_rate": {"enter": 20.0, "leave": 10.0},
    "dwell": 5.0,
    "enough": 20,
}
GAP: Final = (20, 45)
"""How many seconds ago nothing is known."""
STEADY: Final = "traffic is steady: burst ratio 1.0, 3.8% denied"


@dataclass
class State:
    """What the feed says, and how the service behaves beside it."""

    hello: Frame
    tick: Frame
    tables: Frame
    needs_token: bool = False
    keys: dict[str, Frame] = field(default_factory=dict)


def steady(now: float) -> State:
    """A cluster of three nodes, with a burst and an abuse in its past."""
    at = int(now) - 2
    allowed, denied = _traffic(900)
    switches = [
        _switch(at - 2_000, None, "sliding_window", 114, "no traffic has called for another yet"),
        _switch(at - 660, "sliding_window", "token_bucket", 115, "burst ratio 3.4 is above 3"),
        _switch(at - 545, "token_bucket", "sliding_window", 116, "burst ratio 1.2 is below 1.5"),
        _switch(
            at - 305,
            "sliding_window",
            "exponential_backoff",
            117,
            "51% denied, above 50%, at 1,650 requests a second",
        ),
        _switch(at - 191, "exponential_backoff", "sliding_window", 118, "28% denied, below 30%"),
    ]
    hello: Frame = {
        "v": 1,
        "type": "hello",
        "now": now,
        "node": "gw-1",
        "version": "0.2.0",
        "you": {"name": "ann", "role": "operator"},
        "simulator": True,
        "started": now - 86_400,
        "store_kind": "redis",
        "thresholds": THRESHOLDS,
        "history": {
            "from": at - 899,
            "allowed": allowed,
            "denied": denied,
            "p99_us": [820 + 12 * (second % 7) for second in range(900)],
            "burst_ratio": _burst_ratios(allowed, denied),
            "alone": [],
        },
        "switches": switches,
    }
    tick: Frame = {
        "v": 1,
        "type": "tick",
        "seq": 41_207,
        "at": at,
        "now": now,
        "seen": "cluster",
        "traffic": {
            "req_per_sec": 659.1,
            "burst_ratio": 1.0,
            "deny_rate": 0.038,
            "active_algorithm": "sliding_window",
            "total_requests": 57_481_006,
            "total_denied": 1_829_340,
        },
        "second": {"allowed": allowed[-1], "denied": denied[-1]},
        "seconds": {"from": at - 9, "allowed": allowed[-10:], "denied": denied[-10:]},
        "now_per_sec": {"shadow": 6.0, "degraded": 0.0},
        "latency_us": {"p50": 120, "p95": 410, "p99": 840},
        "choice": _choice("sliding_window", now - 191, 118, STEADY),
        "switch": None,
        "store": {
            "kind": "redis",
            "state": "up",
            "since": now - 86_400,
            "p99_us": 610,
            "queue": 0,
            "problem": None,
        },
        "board": {"state": "ok", "age": 0.6, "problem": None},
        "rules": {"state": "ok", "revision": 41, "count": 23, "age": 0.0, "problem": None},
        "regions": None,
        "degraded": None,
        "loop_lag_us": 3_000,
        "viewers": 3,
        "draining": False,
        "verdict": {
            "level": "ok",
            "text": (
                "All is well. 659 requests a second, 3.8% denied, most of them by login-per-address."
            ),
            "problems": [],
        },
    }
    state = State(hello, tick, _tables(now))
    state.keys[DENIED] = _denied_key(now)
    return state


def bursts(now: float) -> State:
    """Requests come in bursts, and a token bucket takes them."""
    state = steady(now)
    at = state.tick["at"]
    reason = "the busiest second had 3.3 times the mean, above 3"
    changed = _switch(at - 74, "sliding_window", "token_bucket", 119, reason)
    history = state.hello["history"]
    for second in range(900 - 74, 900, 8):
        history["allowed"][second] += 1_900
        history["denied"][second] += 260
    history["burst_ratio"] = _burst_ratios(history["allowed"], history["denied"])
    state.hello["switches"].append(changed)
    state.tick["choice"] = _choice("token_bucket", now - 74, 119, reason)
    state.tick["traffic"] |= {
        "req_per_sec": 872.0,
        "burst_ratio": 3.3,
        "deny_rate": 0.055,
        "active_algorithm": "token_bucket",
    }
    state.tick["seconds"] |= {
        "allowed": history["allowed"][-10:],
        "denied": history["denied"][-10:],
    }
    state.tick["verdict"]["text"] = (
        "All is well. Requests come in bursts, and a token bucket takes them: 872 a second, 5.5% denied."
    )
    return state


def abuse(now: float) -> State:
    """Most requests are denied, and backoff decides."""
    state = steady(now)
    at = state.tick["at"]
    reason = "62% denied, above 50%, at 1,540 requests a second"
    history = state.hello["history"]
    for second in range(850, 900):
        history["denied"][second] = 950 + 3 * (second % 11)
    state.hello["switches"].append(
        _switch(at - 42, "sliding_window", "exponential_backoff", 119, reason)
    )
    state.tick["choice"] = _choice("exponential_backoff", now - 42, 119, reason)
    state.tick["traffic"] |= {
        "req_per_sec": 1_540.0,
        "deny_rate": 0.62,
        "active_algorithm": "exponential_backoff",
    }
    state.tick["second"] = {"allowed": history["allowed"][-1], "denied": history["denied"][-1]}
    state.tick["seconds"]["denied"] = history["denied"][-10:]
    text = "More than half of all requests are denied: 62%, most of them by login-per-address."
    problem = {"code": "denied-share", "level": "warn", "text": text, "since": now - 42}
    state.tick["verdict"] = {"level": "warn", "text": text, "problems": [problem]}
    return state


def degraded(now: float) -> State:
    """The store is away, and a node is down."""
    state = steady(now)
    since = now - 44
    history = state.hello["history"]
    for second in range(900 - 44, 900):
        history["allowed"][second] = 285 + second % 5
        history["denied"][second] = 22 + second % 3
        history["p99_us"][second] = 320
    history["p99_us"][900 - 44] = 4_900
    history["alone"] = [[int(since), int(now)]]
    state.tick |= {
        "seen": "node",
        "traffic": state.tick["traffic"]
        | {"req_per_sec": 308.0, "deny_rate": 0.073, "burst_ratio": 1.0},
        "second": {"allowed": 287, "denied": 24},
        "seconds": {"from": state.tick["at"] - 9, "allowed": [287] * 10, "denied": [23] * 10},
        "latency_us": {"p50": 40, "p95": 190, "p99": 320},
        "store": {
            "kind": "redis",
            "state": "down",
            "since": since,
            "p99_us": None,
            "queue": 0,
            "problem": "connection refused",
        },
        "board": {"state": "stale", "age": 44.0, "problem": "the store does not answer"},
        "degraded": {"since": since, "text": "", "answers_per_sec": 308.0},
        "verdict": {
            "level": "bad",
            "text": "Redis does not answer, and gw-3 is down",
            "problems": [
                {
                    "code": "store-down",
                    "level": "bad",
                    "text": (
                        "Limits hold without it, less exactly: each node gives out a third of every limit; "
                        "in the minute of the change a key may get up to twice its limit. "
                        "signup denies everybody, because its rule says so. "
                        "It recovers automatically when Redis is back."
                    ),
                    "since": since,
                },
                {
                    "code": "node-down",
                    "level": "warn",
                    "text": "gw-3 was last heard from 65 s ago. Figures are of gw-1 alone.",
                    "since": now - 65,
                },
            ],
        },
    }
    state.tick["choice"] |= {
        "reason": "unchanged: the board cannot be reached, so the choice cannot change"
    }
    for row in state.tables["rules"]["rows"]:
        row["gives"] = "nothing" if row["rule"] == "signup" else "a third"
    _, second_node, third_node = state.tables["nodes"]["rows"]
    second_node |= {"age": 44.0, "req_per_sec": None, "p99_us": None}
    third_node |= {"age": 65.0, "state": "Down", "req_per_sec": None, "p99_us": None}
    return state


def interrupted(now: float) -> State:
    """A cluster of which nothing is known for some seconds of the last minute."""
    state = steady(now)
    for values in state.hello["history"].values():
        if isinstance(values, list) and values:
            values[900 - GAP[1] : 900 - GAP[0]] = [None] * (GAP[1] - GAP[0])
    return state


def on_etcd(now: float) -> State:
    """The same three nodes: each counts the keys of its shards, and commits what it counts to etcd."""
    state = steady(now)
    state.hello["store_kind"] = "etcd"
    shards = {"own": 22, "free": 0, "unconfirmed": 14}
    state.tick["store"] |= {"kind": "etcd", "p99_us": 4_210, "shards": shards}
    state.tick["latency_us"] = {"p50": 2_150, "p95": 3_480, "p99": 4_690}
    state.hello["history"]["p99_us"] = [4_500 + 90 * (second % 7) for second in range(900)]
    for row, owned, p99_us in zip(
        state.tables["nodes"]["rows"], (22, 21, 21), (4_690, 4_520, 4_870), strict=True
    ):
        row |= {"engine": "etcd", "shards": owned, "p99_us": p99_us}
    return state


def on_etcd_after_a_crash(now: float) -> State:
    """A node is down, and the shards that it left have no owner yet."""
    state = on_etcd(now)
    state.tick["store"]["shards"] |= {"free": 21, "unconfirmed": 61}
    state.tick["verdict"] = verdict_of(Facts(free_shards=21, nodes_down=(("gw-3", 6.0),)), now)
    state.tables["nodes"]["rows"][2] |= {"age": 6.0, "state": "Down"}
    return state


def empty(now: float) -> State:
    """A service that was just started on a laptop: no tokens, no traffic, no rules."""
    state = steady(now)
    at = state.tick["at"]
    reason = "no traffic has called for another algorithm yet"
    state.hello |= {
        "node": "laptop",
        "you": {"name": "anybody", "role": "admin"},
        "store_kind": "memory",
        "started": now - 20,
        "history": {
            "from": at - 17,
            "allowed": [0] * 18,
            "denied": [0] * 18,
            "p99_us": [None] * 18,
            "burst_ratio": [0] * 18,
            "alone": [],
        },
        "switches": [_switch(now - 20, None, "sliding_window", 0, reason)],
    }
    state.tick |= {
        "traffic": {
            "req_per_sec": 0.0,
            "burst_ratio": 0.0,
            "deny_rate": 0.0,
            "active_algorithm": "sliding_window",
            "total_requests": 0,
            "total_denied": 0,
        },
        "second": {"allowed": 0, "denied": 0},
        "seconds": {"from": at - 9, "allowed": [0] * 10, "denied": [0] * 10},
        "latency_us": {"p50": None, "p95": None, "p99": None},
        "choice": _choice("sliding_window", now - 20, 0, reason) | {"agree": [1, 1]},
        "store": state.tick["store"] | {"kind": "memory", "p99_us": None},
        "rules": {"state": "none", "revision": None, "count": 0, "age": 0.0, "problem": None},
        "verdict": {"level": "ok", "text": "All is well. No requests yet.", "problems": []},
    }
    state.tables |= {
        "nodes": {"total": 1, "rows": [_node("laptop", "127.0.0.1:8080", 0.0, None, you=True)]},
        "rules": {"total": 0, "rows": []},
        "checks": _checks(0.0),
        "blocked": {"total": 0, "bans": 0, "rows": []},
        "top": {"period": [60.0, 120.0], "rows": []},
    }
    return state


def simulated(now: float) -> State:
    """A laptop on which all three buttons of the simulator were pressed."""
    state = empty(now)
    at = state.tick["at"]
    allowed, denied = [0] * 180, [0] * 180
    allowed[-56:-51] = [5] * 5
    allowed[-44], denied[-44] = 75, 25
    denied[-36:] = [30] * 36
    to_bucket = "burst ratio 9.5 is above 3"
    to_backoff = "100% denied at 21 requests a second"
    state.hello["started"] = now - 182
    state.hello["history"] = {
        "from": at - 179,
        "allowed": allowed,
        "denied": denied,
        "p99_us": [None if not a + d else 210 for a, d in zip(allowed, denied, strict=True)],
        "burst_ratio": _burst_ratios(allowed, denied),
        "alone": [],
    }
    state.hello["switches"] = [
        _switch(now - 182, None, "sliding_window", 0, "no traffic has called for another yet"),
        _switch(at - 42.4, "sliding_window", "token_bucket", 1, to_bucket),
        _switch(at - 29, "token_bucket", "exponential_backoff", 2, to_backoff),
    ]
    state.tick |= {
        "traffic": {
            "req_per_sec": 30.0,
            "burst_ratio": 1.0,
            "deny_rate": 1.0,
            "active_algorithm": "exponential_backoff",
            "total_requests": 1_205,
            "total_denied": 1_105,
        },
        "second": {"allowed": 0, "denied": 30},
        "seconds": {"from": at - 9, "allowed": [0] * 10, "denied": [30] * 10},
        "latency_us": {"p50": 50, "p95": 120, "p99": 210},
        "choice": _choice("exponential_backoff", now - 30, 2, to_backoff) | {"agree": [1, 1]},
        "verdict": {
            "level": "warn",
            "text": "100% of 30 requests a second are denied, most of them for sim:7f3a.",
            "problems": [],
        },
    }
    state.tables |= {
        "checks": _checks(30.0),
        "blocked": {
            "total": 1,
            "bans": 0,
            "rows": [_blocked("sim:7f3a", None, now + 32, 60.0, 1_105, "100 per minute, adaptive")],
        },
        "top": {"period": [60.0, 120.0], "rows": [{"key": "sim:7f3a", "hits": 1_205, "error": 0}]},
    }
    state.tables["nodes"]["rows"][0] |= {"req_per_sec": 30.0, "p99_us": 210}
    return state


def switching(now: float) -> State:
    """Three switches within a few seconds, with reasons as long as they get."""
    state = simulated(now)
    at = state.tick["at"]
    reason = "9.0 requests/s, below 10/s; the busiest second had 3.3 times the mean, above 3"
    state.hello["switches"] = [
        _switch(now - 182, None, "sliding_window", 0, "no traffic has called for another yet"),
        _switch(at - 25, "sliding_window", "token_bucket", 1, reason),
        _switch(at - 18, "token_bucket", "exponential_backoff", 2, reason),
        _switch(at - 12, "exponential_backoff", "token_bucket", 3, reason),
    ]
    return state


def draining(now: float) -> State:
    """This node was told to end."""
    state = steady(now)
    text = "This node is shutting down."
    state.tick["draining"] = True
    problem = {"code": "draining", "level": "warn", "text": text, "since": now - 2}
    state.tick["verdict"] = {"level": "warn", "text": text, "problems": [problem]}
    state.tables["nodes"]["rows"][0]["draining"] = True
    return state


def regions(now: float) -> State:
    """One of three regions that share limits by escrow; some units got lost between them."""
    state = steady(now)
    state.tick["regions"] = {
        "here": "eu",
        "others": [
            {"region": "asia", "up": True, "lag": 0.31, "heard": 0.3},
            {"region": "us", "up": True, "lag": 0.24, "heard": 0.2},
        ],
        "rights": {
            "lost": 7,
            "lost_at": now - 240,
            "others": [
                {"region": "asia", "asked": 0, "unanswered": 0, "received": 0, "given": 940},
                {"region": "us", "asked": 128, "unanswered": 3, "received": 2_310, "given": 0},
            ],
        },
    }
    text = (
        "7 units of limits kept by escrow got lost between regions. "
        "Nobody can use them until their windows end."
    )
    problem = {"code": "rights-lost", "level": "warn", "text": text, "since": None}
    state.tick["verdict"] = {"level": "warn", "text": text, "problems": [problem]}
    state.keys[SHARED] = _shared_key(now)
    return state


def regions_cut_off(now: float) -> State:
    """The same, with nothing lost, while one region cannot be reached."""
    state = regions(now)
    known = state.tick["regions"]
    known["others"][0] |= {"up": False, "lag": None, "heard": 12.0}
    known["rights"] |= {"lost": 0, "lost_at": None}
    state.tick["verdict"]["text"] = "The region asia cannot be reached."
    return state


def viewer(now: float) -> State:
    """Somebody who may look, and nothing else."""
    state = steady(now)
    state.hello |= {"you": {"name": "bob", "role": "viewer"}, "simulator": False}
    return state


def locked(now: float) -> State:
    """A service that needs a token."""
    state = steady(now)
    state.needs_token = True
    return state


def advanced(state: State, now: float) -> State:
    """The same state, a moment later: what is on the wire each second."""
    later = copy.deepcopy(state)
    passed = int(now) - 2 - later.tick["at"]
    later.tick["at"] += passed
    later.tick["seconds"]["from"] += passed
    later.tick["seq"] += passed
    for frame in (later.tick, later.tables):
        frame["now"] = now
    return later


def _traffic(many: int) -> tuple[list[int], list[int]]:
    chance = random.Random(7)
    allowed = [
        round(620 + 70 * math.sin(second / 47) + chance.uniform(-25, 25)) for second in range(many)
    ]
    denied = [round(20 + chance.uniform(-6, 6)) for _ in range(many)]
    for second in range(240, 356, 8):
        allowed[second] += 1_900 + round(chance.uniform(-300, 300))
        denied[second] += 300
    for second in range(590, 710):
        denied[second] = round(
            950 * min(1.0, (second - 589) / 15, (710 - second) / 8) + chance.uniform(-50, 50)
        )
    return allowed, [max(0, one) for one in denied]


def _burst_ratios(allowed: list[int], denied: list[int]) -> list[float]:
    requests = [a + d for a, d in zip(allowed, denied, strict=True)]
    found = []
    for at in range(len(requests)):
        ten = requests[max(0, at - 9) : at + 1]
        found.append(round(max(ten) / (sum(ten) / 10), 2) if sum(ten) >= 20 else 0.0)
    return found


def _switch(at: float, before: str | None, after: str, epoch: int, reason: str) -> Frame:
    return {
        "at": at,
        "scope": "*",
        "from": before,
        "to": after,
        "epoch": epoch,
        "reason": reason,
        "pinned_by": None,
    }


def _choice(algorithm: str, since: float, epoch: int, reason: str) -> Frame:
    return {
        "scope": "*",
        "algorithm": algorithm,
        "since": since,
        "epoch": epoch,
        "agree": [3, 3],
        "pinned_by": None,
        "pinned_until": None,
        "dwell_left": 0.0,
        "reason": reason,
    }


def _node(name: str, address: str, rate: float, p99_us: int | None, *, you: bool = False) -> Frame:
    return {
        "id": name,
        "address": address,
        "state": "Up",
        "draining": False,
        "you": you,
        "age": 0.4,
        "version": "0.2.0",
        "engine": "redis",
        "rules": "41",
        "req_per_sec": rate,
        "denied_per_sec": 8.1,
        "p99_us": p99_us,
        "epoch": 118,
    }


def _rule(  # noqa: PLR0917 - a table, row by row
    name: str,
    limit: str,
    by: str,
    algorithm: str,
    allowed: float,
    denied: float,
    *,
    adaptive: bool = False,
    shadow: float = 0.0,
) -> Frame:
    return {
        "rule": name,
        "limit": limit,
        "by": by,
        "algorithm": algorithm,
        "adaptive": adaptive,
        "choice": None,
        "mode": "shadow" if shadow else "enforced",
        "percent": 100,
        "on_error": "fallback",
        "allowed": allowed,
        "denied": denied,
        "shadow_denied": shadow,
    }


def _checks(denied: float) -> Frame:
    row = _rule("", "what each check names", "key", "sliding_window", 0.0, denied, adaptive=True)
    return {name: value for name, value in row.items() if name != "on_error"} | {"rule": None}


def _blocked(  # noqa: PLR0917 - a table, row by row
    key: str, rule: str | None, until: float | None, window: float | None, denied: int, reason: str
) -> Frame:
    kind = "ban" if rule is None and "banned" in reason else "limit"
    return {
        "key": key,
        "rule": rule,
        "kind": kind,
        "until": until,
        "window": window,
        "denied": denied,
        "reason": reason.removeprefix("banned "),
    }


def _tables(now: float) -> Frame:
    busy = [
        _rule("login-per-address", "5 per minute", "IP address", "sliding_window", 21.4, 12.6),
        _rule("search", "20 per minute, burst 5", "user id", "token_bucket", 118.0, 4.1),
        _rule(
            "every-client",
            "600 per minute",
            "IP address",
            "sliding_window",
            648.0,
            1.9,
            adaptive=True,
        ),
        _rule("llm-tokens", "90,000 per minute", "organisation", "token_bucket", 9.2, 0.6),
        _rule("signup", "3 per hour", "IP address", "sliding_log", 0.8, 0.3),
        _rule("checkout-v2", "30 per minute", "user id", "sliding_window", 44.0, 0.0, shadow=6.0),
    ]
    quiet = [
        _rule(f"partner-{number}", "1000 per hour", "api key", "fixed_window", number / 10, 0.0)
        for number in range(17)
    ]
    login = "rule login-per-address: 5 per minute, sliding_window"
    return {
        "v": 1,
        "type": "tables",
        "at": int(now) - 2,
        "now": now,
        "lists": "cluster",
        "nodes": {
            "total": 3,
            "rows": [
                _node("gw-1", "10.0.4.11:8080", 231.0, 810, you=True),
                _node("gw-2", "10.0.4.12:8080", 224.0, 790),
                _node("gw-3", "10.0.4.13:8080", 209.0, 920),
            ],
        },
        "rules": {"total": 23, "rows": busy + quiet},
        "checks": _checks(0.0),
        "blocked": {
            "total": 17,
            "bans": 1,
            "rows": [
                _blocked(DENIED, "login-per-address", now + 34, 60.0, 1_204, login),
                _blocked("ip:198.51.100.77", "login-per-address", now + 51, 60.0, 883, login),
                _blocked(
                    "user:66", None, now + 1_644, 3_600.0, 412, "banned by ann: credential stuffing"
                ),
                _blocked("user:8841", "search", now + 12, 60.0, 96, "rule search"),
                _blocked("org:northwind-batch-import", "llm-tokens", now + 11, 60.0, 58, "rule"),
                _blocked(HOSTILE, "every-client", now + 19, 60.0, 31, "rule every-client"),
                _blocked("ip:2001:db8:4f:1200::/64", "signup", now + 2_310, 3_600.0, 9, "signup"),
            ],
        },
        "top": {
            "period": [60.0, 120.0],
            "rows": [
                {"key": key, "hits": hits, "error": hits // 400}
                for key, hits in (
                    ("org:northwind-batch-import", 8_123),
                    ("user:42", 5_210),
                    (DENIED, 2_377),
                    ("user:8841", 1_960),
                    ("ip:198.51.100.77", 1_722),
                    ("partner:globex", 1_468),
                    ("user:310\u202e", 1_201),
                    ("ip:192.0.2.44", 977),
                )
            ],
        },
    }


def _limit(rule: str, many: int, used: int, algorithm: str, after: float) -> Frame:
    return {
        "rule": rule,
        "name": rule,
        "limit": many,
        "window": 60.0,
        "burst": None,
        "said": f"{many} per minute",
        "from": "rule",
        "algorithm": algorithm,
        "decides": "sliding_window",
        "in_use": True,
        "used": used,
        "remaining": many - used,
        "allowed": after == 0,
        "passes_after": after,
        "reset_after": 58.9,
        "backoff_level": 0,
        "enforced": True,
        "candidates": None,
        "rights": None,
    }


def _shared_key(now: float) -> Frame:
    limit = _limit("invoices", 90, 38, "fixed_window", 0.0)
    limit["remaining"] = 7
    limit["rights"] = {
        "limit": 90,
        "share": 30,
        "received": {"us": 15},
        "given": {},
        "admitted": 38,
        "left": 7,
        "said": "this region may admit 7 more: it began with 30, got 15 from us, and admitted 38",
    }
    return {
        **_denied_key(now),
        "key": SHARED,
        "allowed": True,
        "passes_after": 0.0,
        "remaining": 7,
        "why": "7 left of 90 per minute, by invoices",
        "limits": [limit],
    }


def _denied_key(now: float) -> Frame:
    def candidate(algorithm: str, remaining: int, *, decides: bool = False) -> Frame:
        return {
            "algorithm": algorithm,
            "decides": decides,
            "used": 600 - remaining,
            "remaining": remaining,
            "allowed": True,
            "passes_after": 0.0,
        }

    every = _limit("every-client", 600, 212, "adaptive", 0.0)
    every["candidates"] = [
        candidate("sliding_window", 388, decides=True),
        candidate("token_bucket", 341),
        candidate("exponential_backoff", 388),
    ]
    return {
        "key": DENIED,
        "now": now,
        "allowed": False,
        "passes_after": 34.2,
        "why": "login-per-address allows 5 in a minute, and all 5 are used; asking again does not delay it",
        "remaining": 0,
        "limits": [_limit("login-per-address", 5, 5, "sliding_window", 34.2), every],
        "ban": None,
        "override": None,
        "own_limit": None,
        "settings": [],
        "complete": True,
    }
