"""Node: one running process of the service, and its parts.

The limiter decides, the board has per-key settings (limits, bans) and the other nodes' data, and the recorder counts.
`auth` authenticates callers; changes go into `audit`. One constructor builds all of it from the settings, and reports
invalid ones as a `ConfigError`.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..adaptive import AdaptiveControl
from ..aio import AsyncLimiter
from ..algorithms import Adaptive
from ..board import Board, NodeIdentity
from ..board.opening import open_board_store
from ..engines.registry import NodeDoor, kind_of
from ..errors import ConfigError
from ..guards.key_settings import KeySettingsGuard
from ..guards.kill_switch import KillSwitch, KillSwitchGuard
from ..guards.membership import Membership
from ..rate import Rate, limits_of
from ..regions.escrow_guard import ESCROW
from ..regions.exchange import RegionExchange
from ..regions.opening import open_region_store, open_rights_store
from ..rule_decisions import require_countable
from ..rules.format.parse import parse_rules
from ..rules.format.starter import STARTER
from ..rules.live.last_good import default_folder
from ..rules.live.opening import FixedRules, open_rules
from .garbage_collection import without_collection
from .security.audit import AuditLog
from .security.auth import Auth, require_safe_bind
from .security.hosts import hosts_for, is_everywhere
from .security.tls import Certificate
from .telemetry.loop_lag import LoopLag
from .telemetry.recent_figures import FIGURES, NodeFigures, RecentFigures
from .telemetry.recorder import Recorder
from .telemetry.rule_traffic import RuleTraffic
from .telemetry.shedding import Shedding
from .telemetry.store_health import StoreHealth

if TYPE_CHECKING:
    from pathlib import Path

    from ..algorithms import Limit
    from ..board import BoardStore, Report
    from ..clock import Clock
    from ..engines.base import AsyncEngine, Engine
    from ..regions.model import Regions
    from ..regions.rights_figures import RightsFigures
    from ..rules.live.following import LiveRules
    from .settings import Settings

US_PER_SECOND = 1_000_000
KILL_SWITCH_EVERY = 0.25
"""Seconds between two checks of the kill switch file."""


class Node:
    """One process of the service. `start` it before use, in the event loop that it will live in.

    `engine` replaces the one in the settings, and then there are no rules. `clock` is for the board and the recorder.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        port: int = 0,
        worker: int = 0,
        shared_dir: Path | None = None,
        engine: Engine | AsyncEngine | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings
        self.port = port or settings.port
        """The port it listens on; the settings may leave that to the system."""
        self.worker = worker
        """The index of this worker, from 0."""
        self.shared_dir = shared_dir
        """A folder that all workers of one service share while it runs."""
        self._watching: asyncio.Task[None] | None = None
        self.draining = False
        """Set when the process is told to end: it is not ready any more, and answers close their connection."""
        self.store = StoreHealth()
        """Whether the engine's store answers."""
        self.recorder = Recorder(clock)
        with settings.attributing_errors("thresholds"):
            self.control = AdaptiveControl(settings.adaptive_thresholds(), counts=False)
        """Chooses for adaptive limits, as all nodes have agreed."""
        self._all_regions = settings.read_regions()
        self.exchange = self._open_exchange()
        """This node's exchange with other regions; `None` if there is none."""
        self.rules: Any = None
        """The rules it follows; `None` if an engine was passed in."""
        if engine is None:
            with settings.attributing_errors("rules"):
                self.rules = _open_rules(settings, self.regions)
        self.shedding = Shedding(settings.max_lag)
        """Decides which checks are refused under overload."""
        self.kill_switch = KillSwitch(self._kill_switch_path())
        """What is turned off here."""
        self.key_settings = KeySettingsGuard(lambda: self.board)
        """The guard that applies bans and per-key limits."""
        self.figures = RecentFigures(self.recorder)
        """The figures of this node for the last ten seconds."""
        self.loop_lag = LoopLag()
        """How late its event loop is."""
        self.rule_traffic = RuleTraffic(self.recorder, self.control, self.rules)
        self.members = self._open_members()
        """The nodes that share the store, for when it does not answer."""
        with settings.attributing_errors("engine"):
            self.limiter = self._open_limiter(_engine_url(settings) if engine is None else engine)
        self.auth = _auth(settings)
        with settings.attributing_errors("board"):
            self.board = self._open_board(clock)
        with settings.attributing_errors("audit_log"):
            self.audit = AuditLog(self._audit_path(), node=self.id)
        self.certificate: Certificate | None = None
        """The TLS certificate of the listeners."""
        if settings.tls_cert:
            with settings.attributing_errors("tls_cert"):
                self.certificate = Certificate(settings.tls_cert, settings.tls_key)

    @property
    def id(self) -> str:
        """Its name: from the settings, or from its host and port; each worker has its own."""
        name = self.settings.node_id or f"{socket.gethostname()}:{self.port}"
        return f"{name}/{self.worker}" if self.settings.workers > 1 else name

    @property
    def regions(self) -> Regions | None:
        """The regions; `None` if there is only one."""
        return None if self._all_regions is None else self._all_regions.regions

    @property
    def default_limit(self) -> Limit:
        """The limit of checks that name none."""
        settings = self.settings
        rate = Rate(settings.default_limit, settings.default_window)
        return limits_of(rate, settings.default_algorithm)[0]

    @property
    def active_algorithm(self) -> str:
        """The algorithm of checks that name none."""
        return (
            self.control.deciding().algorithm
            if self.is_adaptive
            else self.settings.default_algorithm
        )

    @property
    def is_adaptive(self) -> bool:
        """Whether checks that name no algorithm follow the traffic."""
        return self.settings.default_algorithm == Adaptive.name

    @property
    def store_problem(self) -> str | None:
        """Why the store does not answer, according to checks, or to the board, which calls it every second.

        `None` if it does.
        """
        if not self.store.up:
            return self.store.last_error
        elsewhere = bool(self.settings.board)
        return None if elsewhere or self.board.reachable else self.board.problem

    def own_figures(self) -> NodeFigures:
        """This node's figures of the last ten seconds, and the algorithms it uses."""
        meter = self.limiter.engine.describe().meter
        return self.figures.figures()._replace(
            epoch=self.control.deciding().epoch,
            engine={} if meter is None else meter.gauges(),
            rights=self._rights_figures(),
        )

    def _rights_figures(self) -> RightsFigures | None:
        """What this node has done for rights of regions; `None` where no rule is kept by escrow."""
        rights = None if self.exchange is None else self.exchange.rights
        rules = () if self.rules is None else self.rules.rules
        limits = (limit for rule in rules if rule.enabled for limit in rule.limits)
        if rights is None or not any(limit.consistency == ESCROW for limit in limits):
            return None
        return rights.figures

    async def figures_by_node(self) -> dict[str, NodeFigures]:
        """The same of every node that reports them, by name."""
        others = await self.board.others(FIGURES)
        found = {name: NodeFigures.from_bytes(packed) for name, packed in others.items()}
        return {**found, self.id: self.own_figures()}

    async def start(self) -> None:
        """Start all parts."""
        await self.board.start()
        if self.exchange is not None:
            await self.exchange.start(self.limiter.engine)
        await self.store.start(self.limiter.engine, shared=self.settings.shared_engine)
        if self.kill_switch.path is not None:
            self._watching = asyncio.get_running_loop().create_task(self._watch_kill_switch())

    async def hand_over(self) -> None:
        """Let other nodes take over what this one owns, if the engine divides keys, while it still answers."""
        hand_over = getattr(self.limiter.engine.unguarded, "hand_over", None)
        if hand_over is not None:
            await hand_over()

    async def stop(self) -> None:
        """Stop all parts, and close the engine."""
        if self._watching is not None:
            self._watching.cancel()
        async with AsyncExitStack() as parts:  # In reverse, and each whatever became of the others.
            parts.callback(self.close)
            parts.push_async_callback(self.limiter.aclose)
            parts.push_async_callback(self.board.stop)
            if self.exchange is not None:
                parts.push_async_callback(self.exchange.stop)
            parts.push_async_callback(self.store.stop)

    def close(self) -> None:
        """Stop following the rules, and close the audit log."""
        if self.rules is not None:
            self.rules.close()
        self.audit.close()

    def _open_limiter(self, engine: str | Engine | AsyncEngine) -> AsyncLimiter:
        settings = self.settings
        on_error: Any = settings.on_error
        return AsyncLimiter(
            engine,
            namespace=settings.namespace,
            rules=self.rules,
            on_error=on_error,
            on_failure=self.store.failed,
            nodes=self.members,
            bad_paths="pass" if settings.bad_paths == "pass" else "deny",
            guards=[
                *(KillSwitchGuard(self.kill_switch), self.key_settings),
                *(() if self.exchange is None else self.exchange.guards),
            ],
            adaptive=self.control,
            regions=self.regions,
        )

    def _kill_switch_path(self) -> str | Path | None:
        """The file of the kill switch: from the settings, or in the folder that all workers share."""
        if self.settings.kill_switch:
            return self.settings.kill_switch
        return None if self.shared_dir is None else self.shared_dir / "kill-switch"

    async def _watch_kill_switch(self) -> None:
        while True:
            await asyncio.sleep(KILL_SWITCH_EVERY)
            self.kill_switch.refresh()

    def _open_members(self) -> Membership:
        settings = self.settings
        path = None
        folder = default_folder() if settings.shared_engine else None
        if folder is not None:
            path = folder / f"members-{sha256(self.id.encode()).hexdigest()[:16]}.json"
        return Membership(settings.nodes or None, me=self.id, path=path)

    def _open_exchange(self) -> RegionExchange | None:
        settings, regions = self.settings, self._all_regions
        if regions is None or not regions.urls:
            return None

        def now_us() -> int:
            return self.board.now_us()  # The board is opened later.

        def keeps_share(rule_id: str | None) -> bool:
            rules = {} if self.rules is None else self.rules.current.by_id
            rule = None if rule_id is None else rules.get(rule_id)
            return rule is not None and rule.when_cut_off == "share"

        with settings.attributing_errors("board"):
            store = open_region_store(settings.board, settings.engine, settings.namespace, now_us)
        return RegionExchange(
            regions,
            store,
            now_us=now_us,
            keeps_share=keeps_share,
            node=self.id,
            rights=open_rights_store(settings.engine, settings.namespace),
        )

    def _open_board(self, clock: Clock | None) -> Board:
        settings = self.settings
        store = _board_store(settings, self.limiter.engine.clock)
        meets = kind_of(settings.board or settings.engine).shared
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        identity = NodeIdentity(
            id=self.id,
            address=f"{host}:{self.port}",
            version=__version__,
            engine=settings.store,
            ttl_us=round(settings.node_ttl * US_PER_SECOND),
        )

        def report() -> Report:
            """What this node reports once a second; its identity is updated first."""
            version = "" if self.rules is None else str(self.rules.current.version)
            board.describe(rules=version, draining=self.draining)
            self.rule_traffic.report()
            if meets and board.view.at_us:  # Until then, the members are not known.
                self.members.saw(board.view.up)
            own_report = self.recorder.report(alone=store.private_lists, offset_us=board.offset_us)
            self.figures.note()
            if store.private_lists:
                return own_report
            return own_report._replace(
                lists={**own_report.lists, FIGURES: self.own_figures().to_bytes()}
            )

        heartbeat_us = round(settings.heartbeat * US_PER_SECOND)
        board = Board(
            store,
            identity,
            report=report,
            heartbeat_us=heartbeat_us,
            clock=clock,
            control=self.control,
        )
        return board

    def _audit_path(self) -> str | None:
        path = self.settings.audit_log
        if not path:
            return None
        return f"{path}.{self.worker}" if self.settings.workers > 1 else path


def _engine_url(settings: Settings) -> str:
    """The engine's URL; completed with this node's address, if the engine needs it."""
    if not settings.resp_port:
        return settings.engine
    host = socket.gethostname() if is_everywhere(settings.host) else settings.host
    shown = f"[{host}]" if ":" in host else host
    door = NodeDoor(f"{shown}:{settings.resp_port}", bool(settings.tls_cert), bool(settings.tokens))
    return kind_of(settings.engine).for_node(settings.engine, door)


def _auth(settings: Settings) -> Auth:
    hosts = None if settings.tokens else hosts_for(settings.host, settings.allowed_hosts)
    with settings.attributing_errors("tokens" if settings.tokens else "check_needs_token"):
        auth = Auth(settings.tokens, checks_need_token=settings.check_needs_token, hosts=hosts)
    with settings.attributing_errors("host"):
        require_safe_bind(settings.host, auth)
    return auth


def _open_rules(settings: Settings, regions: Regions | None) -> LiveRules | FixedRules:
    """The rules from the settings, or the starter rules."""
    if settings.rules:
        require = partial(require_countable, regions, settings.describe_engine().refuses)
        return open_rules(settings.rules, while_reading=without_collection, require=require)
    return FixedRules(parse_rules(STARTER, "the starter rules").rules)


def _board_store(settings: Settings, clock: Clock) -> BoardStore:
    """Where the board is kept."""
    if settings.workers > 1 and not kind_of(settings.board or settings.engine).shared:
        raise ConfigError(
            "several workers cannot share a board in memory; set 'board' to a Redis or etcd URL, or leave it out"
        )
    return open_board_store(settings.board, settings.engine, settings.namespace, clock)
