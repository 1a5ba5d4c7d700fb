"""Frames: the messages of the feed, as plain values.

`hello` is how it begins for somebody, `tick` the last second, `tables` what changes less often. The figures are those
of all nodes, as the board knows them. While that is out of reach a node knows only itself, and the frames say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ... import __version__
from ...adaptive import OVERALL
from ...algorithms import Adaptive
from ...board import figures_of
from ...guards.kill_switch import EVERYTHING
from ..management.blocks import limited_keys
from ..management.choices import choice_response
from ..management.health import health_of
from ..management.simulation import may_simulate
from ..telemetry.denied_keys import limit_in_words
from ..telemetry.recent_figures import combined, percentile_us
from ..telemetry.recorder import TOP_PERIOD_US
from .history import LiveHistory, Switches
from .parts import parts_of
from .regions import cut_off, lately_lost, regions_frame
from .rows import levels_of, node_row, rule_row, tests_of
from .verdict import Facts, verdict_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...adaptive import Choice
    from ...board import Second
    from ...board.model import NodeSeen
    from ...rules.model import Rule
    from ..node import Node
    from ..security.auth import Caller
    from ..telemetry.recent_figures import NodeFigures, RuleRates
    from .hub import Frame

VERSION: Final = 1
US: Final = 1_000_000
SHOWN: Final = 50
SHOWN_TOP: Final = 20
STORES: Final = {"redis": "Redis", "etcd": "etcd"}
GIVES: Final = {"open": "no limit", "closed": "nothing", "raise": "an error"}
"""Without the store: what a rule gives, by its `on_error`; otherwise each node gives its share."""
SHARES: Final = {1: "all", 2: "half", 3: "a third", 4: "a quarter"}
"""What share of each limit each of these nodes admits."""
MAX_PROBLEM: Final = 300
FIGURES_SECONDS: Final = 12.0
"""After that the figures of ten seconds know nothing of what was before, also if a node tells of them late."""


class LiveFrames:
    """Makes the frames of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._history = LiveHistory()
        self._switches = Switches()
        self._others: Mapping[str, NodeFigures] = {}
        self._started = self._now()
        self._seq = 0
        self._store_since = self._started
        self._store_was_up = True
        self.viewers = 0
        """How many watch; the hub writes it here."""

    def _now(self) -> float:
        return self._node.board.now_us() / US

    @property
    def _alone(self) -> bool:
        """Whether nothing is heard of the other nodes."""
        return self._node.board.problem is not None

    def _seconds(self) -> tuple[Second, ...]:
        board = self._node.board
        return board.own_seconds if self._alone else board.view.seconds

    def _figures(self) -> NodeFigures:
        """Of all nodes that are up, as far as they are known."""
        own = self._node.own_figures()
        if self._alone:
            return own
        up = {seen.identity.id for seen in self._node.board.view.nodes if seen.state == "Up"}
        return combined([own, *(one for name, one in self._others.items() if name in up)])

    def hello(self, caller: Caller) -> Frame:
        """How it begins."""
        node = self._node
        history = self._history.frame()
        return {
            "v": VERSION,
            "type": "hello",
            "now": self._now(),
            "node": node.id,
            "version": __version__,
            "you": {"name": caller.name, "role": caller.role},
            "simulator": may_simulate(node, caller),
            "started": self._started,
            "store_kind": node.settings.store,
            "thresholds": _thresholds(node),
            "history": history,
            "switches": self._switches.frame(history["from"]),
        }

    def tick(self) -> Frame:
        """The last second."""
        node, now = self._node, self._now()
        seconds = [one for one in self._seconds() if one.at >= int(self._started)]
        rates, figures = figures_of(self._seconds()), self._figures()
        choice = node.control.deciding(OVERALL)
        totals = node.recorder.totals if self._alone else node.board.view.totals
        latency = {name: percentile_us(figures.latency, share) for name, share in _SHARES.items()}
        self._history.note(seconds, latency["p99"], rates.burst_ratio, alone=self._alone)
        self._seq += 1
        store = self._store(now)
        frame: Frame = {
            "v": VERSION,
            "type": "tick",
            "seq": self._seq,
            "at": seconds[-1].at if seconds else int(now) - 1,
            "now": now,
            "seen": "node" if self._alone else "cluster",
            "traffic": {
                "req_per_sec": round(rates.req_per_sec, 2),
                "burst_ratio": round(rates.burst_ratio, 2),
                "deny_rate": round(rates.deny_rate, 4),
                "active_algorithm": node.active_algorithm,
                "total_requests": totals.requests,
                "total_denied": totals.denied,
            },
            "second": _second(seconds[-1]) if seconds else None,
            "seconds": {
                "from": seconds[0].at if seconds else int(now),
                "allowed": [one.requests - one.denied for one in seconds],
                "denied": [one.denied for one in seconds],
            },
            "now_per_sec": {
                "shadow": round(sum(one.shadow_denied for one in figures.rules.values()), 2),
                "degraded": round(figures.degraded, 2),
            },
            "latency_us": latency,
            "choice": self._choice(choice),
            "switch": self._switches.note(choice, self._started),
            "store": store,
            "board": {
                "state": "stale" if self._alone else "ok",
                "age": round(node.board.stale_seconds, 1),
                "problem": _short(node.board.problem),
            },
            "rules": self._rules(),
            "regions": regions_frame(node, figures.rights),
            "degraded": self._degraded(store, figures),
            "loop_lag_us": round(node.loop_lag.worst * US),
            "viewers": self.viewers,
            "draining": node.draining,
            "verdict": verdict_of(self._facts(now, figures, latency["p99"], store), now),
        }
        tests = tests_of(frame["traffic"], _thresholds(node))
        return frame | {"parts": parts_of(frame), "tests": tests, "levels": levels_of(frame)}

    async def tables(self) -> Frame:
        """What changes less often."""
        node, now = self._node, self._now()
        told = await node.figures_by_node()
        self._others = {name: one for name, one in told.items() if name != node.id}
        figures = self._figures()
        rates = figures.rules
        rules = [] if node.rules is None else [one for one in node.rules.rules if one.enabled]
        rows = [self._rule(rule, rates) for rule in rules]
        rows.sort(key=lambda row: (-row["denied"] - row["shadow_denied"], -row["allowed"]))
        period = TOP_PERIOD_US / US
        top = await node.board.top(node.recorder.top(), SHOWN_TOP)
        return {
            "v": VERSION,
            "type": "tables",
            "at": int(now) - 1,
            "now": now,
            "lists": "node" if self._alone else "cluster",
            "nodes": self._nodes(now),
            "rules": {"total": len(rules), "rows": rows[:SHOWN]},
            "checks": self._checks(rates.get("")),
            "blocked": await self._blocked(),
            "top": {
                "period": [period, 2 * period],
                "rows": [{"key": hot.key, "hits": hot.hits, "error": hot.error} for hot in top],
            },
        }

    def _choice(self, choice: Choice) -> Frame:
        up = [seen.identity.id for seen in self._node.board.view.nodes if seen.state == "Up"]
        others = [self._others[name].epoch for name in up if name in self._others]
        follow = 1 + sum(epoch == choice.epoch for epoch in others)
        reason = choice.reason
        if self._alone and self._node.settings.shared_engine:
            reason = "unchanged: the board cannot be reached, so the choice cannot change"
        return choice_response(self._node).model_dump() | {
            "agree": [follow if self._others or len(up) <= 1 else len(up), max(1, len(up))],
            "reason": reason,
        }

    def _store(self, now: float) -> Frame:
        node = self._node
        problem = node.store_problem
        is_up = problem is None
        if is_up is not self._store_was_up:
            self._store_was_up, self._store_since = is_up, now - node.store.down_for
        own = node.own_figures()
        frame: Frame = {
            "kind": node.settings.store,
            "state": "up" if is_up else "down",
            "since": self._store_since,
            "p99_us": percentile_us(own.store, 0.99) if is_up else None,
            "queue": int(own.engine.get("store_queue_depth", 0)),
            "problem": _short(problem),
        }
        if "etcd_shards" in own.engine:
            frame["shards"] = {
                "own": int(own.engine["etcd_shards"]),
                "free": int(own.engine["etcd_free_shards"]),
                "unconfirmed": int(own.engine["etcd_unconfirmed"]),
            }
        return frame

    def _rules(self) -> Frame:
        node = self._node
        rules = node.rules
        return {
            "state": health_of(node).rules,
            "revision": str(rules.current.version)[:12] if node.settings.rules else None,
            "count": 0 if rules is None else len(rules.rules),
            "age": 0.0 if rules is None else round(rules.stale_seconds, 1),
            "problem": None if rules is None else _short(rules.problem or rules.alarm),
        }

    def _degraded(self, store: Frame, figures: NodeFigures) -> Frame | None:
        if store["state"] == "up":
            return None
        return {
            "since": store["since"],
            "text": f"{self._store_name} does not answer",
            "answers_per_sec": round(figures.degraded, 2),
        }

    @property
    def _store_name(self) -> str:
        kind = self._node.settings.store
        return STORES.get(kind, "The store")

    def _facts(self, now: float, figures: NodeFigures, p99_us: int | None, store: Frame) -> Facts:
        node, rates = self._node, figures_of(self._seconds())
        named = {name: one for name, one in figures.rules.items() if name and one.denied > 0}
        busiest = max(named, key=lambda name: named[name].denied, default=None)
        down = store["state"] == "down"
        # The figures are those of ten seconds, and would tell of an outage that is over.
        just_back = not down and self._started < store["since"] > now - FIGURES_SECONDS
        rules = node.rules
        states = [one for one in node.board.view.nodes if one.state == "Down"]
        return Facts(
            req_per_sec=rates.req_per_sec,
            deny_rate=rates.deny_rate,
            algorithm=node.active_algorithm,
            busiest_rule=busiest,
            total_requests=node.board.view.totals.requests,
            store=self._store_name,
            store_down_for=max(0.0, now - store["since"]) if down else None,
            gives=self._gives() if down else {},
            failed_per_sec=0.0 if just_back else figures.failed,
            open_per_sec=0.0 if just_back else figures.uncounted,
            p99_us=p99_us,
            queue=store["queue"],
            free_shards=store["shards"]["free"] if "shards" in store else 0,
            loop_late_us=round(node.loop_lag.worst * US),
            board_stale_for=node.board.stale_seconds if self._alone else None,
            rules_stale_for=(rules.stale_seconds or None) if rules is not None else None,
            rules_alarm=_short(rules.alarm) if rules is not None else None,
            nodes_down=tuple((one.identity.id, now - one.last_seen_us / US) for one in states),
            rights_lost=lately_lost(figures.rights, now),
            **cut_off(node),
            draining=node.draining,
            all_off=node.kill_switch.off.get(EVERYTHING),
            rules_off=tuple(sorted(set(node.kill_switch.off) - {EVERYTHING})),
        )

    def _gives(self) -> dict[str, tuple[str, ...]]:
        """What is given without the store, and by which rules: up to three names each."""
        rules = self._node.rules.rules if self._node.rules is not None else ()
        said = {rule.rule_id: rule.on_error for rule in rules} | {"/check": None}
        found: dict[str, list[str]] = {}
        for name, on_error in said.items():
            found.setdefault(self._given(on_error), []).append(name)
        return {
            what: tuple(names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} others"])
            for what, names in found.items()
        }

    def _given(self, on_error: str | None) -> str:
        """What a rule admits on this node while the store is down."""
        named = GIVES.get(on_error or self._node.settings.on_error)
        nodes = self._node.members.fleet().nodes
        return named or SHARES.get(nodes, f"1/{nodes}")

    def _rule(self, rule: Rule, rates: Mapping[str, RuleRates]) -> Frame:
        node = self._node
        seen = rates.get(rule.rule_id)
        limit = rule.limits[0]
        is_adaptive = isinstance(limit, Adaptive)
        choice = node.control.deciding(rule.rule_id) if is_adaptive else None
        allowed, denied, shadow = (0.0, 0.0, 0.0) if seen is None else seen
        row: Frame = {
            "rule": rule.rule_id,
            "limit": ", ".join(map(limit_in_words, rule.limits)),
            "by": " and ".join(_part(part.kind, part.name) for part in rule.identifier.parts),
            "algorithm": limit.name if choice is None else choice.algorithm,
            "adaptive": is_adaptive,
            "choice": None if choice is None else _choice_frame(node, rule.rule_id),
            "mode": self._mode(rule),
            "percent": rule.enforce_percent,
            "on_error": rule.on_error or node.settings.on_error,
            "allowed": round(allowed, 2),
            "denied": round(denied, 2),
            "shadow_denied": round(shadow, 2),
        }
        return rule_row(row | self._instead(rule.on_error))

    def _checks(self, seen: RuleRates | None) -> Frame:
        """Checks that name no rule, as one more."""
        row: Frame = {
            "rule": None,
            "limit": "what each check names",
            "by": "key",
            "algorithm": self._node.active_algorithm,
            "adaptive": self._node.is_adaptive,
            "choice": None,
            "mode": "enforced",
            "percent": 100,
            "allowed": 0.0 if seen is None else round(seen.allowed, 2),
            "denied": 0.0 if seen is None else round(seen.denied, 2),
            "shadow_denied": 0.0,
        }
        return rule_row(row | self._instead(None))

    def _instead(self, on_error: str | None) -> Frame:
        """While the store is down: what is admitted without it."""
        return {} if self._store_was_up else {"gives": self._given(on_error)}

    def _mode(self, rule: Rule) -> str:
        if self._node.kill_switch.is_off(rule.rule_id):
            return "off"
        return "shadow" if rule.shadow else "enforced"

    def _nodes(self, now: float) -> Frame:
        own = self._node.own_figures()
        seen = self._node.board.view.nodes
        rows = [self._node_row(one, own, now) for one in seen[:SHOWN]]
        return {"total": len(seen), "rows": rows}

    def _node_row(self, seen: NodeSeen, own: NodeFigures, now: float) -> Frame:
        identity = seen.identity
        you = identity.id == self._node.board.identity.id
        figures = own if you else self._others.get(identity.id)
        row: Frame = {
            "id": identity.id,
            "address": identity.address,
            "state": seen.state,
            "draining": identity.draining,
            "you": you,
            "age": round(max(0.0, now - seen.last_seen_us / US), 1),
            "version": identity.version,
            "engine": identity.engine,
            "rules": identity.rules,
            "req_per_sec": None if figures is None else round(figures.requests, 2),
            "denied_per_sec": None if figures is None else round(figures.denied, 2),
            "p99_us": None if figures is None else percentile_us(figures.latency, 0.99),
            "shards": None if figures is None else figures.engine.get("etcd_shards"),
            "epoch": figures and figures.epoch,
        }
        return node_row(row, alone=self._alone)

    async def _blocked(self) -> Frame:
        """Bans first, then those that were denied most."""
        bans = self._node.board.view_now().bans
        limited = sorted(await limited_keys(self._node), key=lambda one: -one.denied)
        banned = [
            {
                "key": key,
                "rule": None,
                "kind": "ban",
                "until": None if ban.until_us is None else ban.until_us / US,
                "window": None if ban.until_us is None else (ban.until_us - ban.set_at_us) / US,
                "denied": None,
                "reason": f"by {ban.by or 'somebody'}" + (f": {ban.reason}" if ban.reason else ""),
            }
            for key, ban in sorted(bans.items())[:SHOWN]
        ]
        rows = [
            {
                "key": one.key,
                "rule": one.rule,
                "kind": "limit",
                "until": one.until_us / US,
                "window": one.window_us / US,
                "denied": one.denied,
                "reason": one.reason,
            }
            for one in limited[: SHOWN - len(banned)]
        ]
        return {"total": len(bans) + len(limited), "bans": len(bans), "rows": [*banned, *rows]}


_SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def _second(second: Second) -> Frame:
    return {"allowed": second.requests - second.denied, "denied": second.denied}


def _choice_frame(node: Node, rule: str) -> Frame:
    return choice_response(node, rule).model_dump() | {"agree": None}


def _thresholds(node: Node) -> Frame:
    limits = node.control.agreement.thresholds
    return {
        "burst": {"enter": limits.enter_burst_ratio, "leave": limits.leave_burst_ratio},
        "abuse": {"enter": limits.enter_deny_rate, "leave": limits.leave_deny_rate},
        "abuse_rate": {"enter": limits.enter_abuse_rate, "leave": limits.leave_abuse_rate},
        "dwell": limits.dwell_us / US,
        "enough": 20,
    }


def _part(kind: str, name: str) -> str:
    if kind in {"header", "descriptor", "path"} and name:
        return f"{kind} {name}"
    return "IP address" if kind == "ip_address" else kind.replace("_", " ")


def _short(problem: Any) -> str | None:
    return str(problem)[:MAX_PROBLEM] if problem else None
