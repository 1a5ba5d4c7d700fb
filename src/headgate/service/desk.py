"""The desk: the parts of a node that people work with, and how they are made from its settings.

A bare node decides and nothing else. `equipped` gives it what an operated service needs: a recorder that counts, a place at the board,
tokens, an audit log, and a certificate where one is named. `desk_of` hands those to whoever manages the node, with their types.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..board import Board, Identity, MemoryStore
from ..engines.url import memory_options
from ..errors import ConfigError
from .audit import AuditLog
from .auth import Auth, require_safe_bind
from .hosts import hosts_for
from .node import NoBoard, NoRecorder
from .recorder import Recorder
from .tls import Certificate

if TYPE_CHECKING:
    from ..aio import AsyncLimiter
    from ..board import Report, Store
    from ..query import Readers
    from .node import Node
    from .settings import Settings

US_PER_SECOND = 1_000_000
BOARD_OPTIONS: Readers = {"file": str}


@dataclass(frozen=True, slots=True)
class Desk:
    """A node that has been equipped."""

    node: Node
    board: Board
    recorder: Recorder
    auth: Auth
    audit: AuditLog

    @property
    def settings(self) -> Settings:
        """What the operator has said."""
        return self.node.settings

    @property
    def limiter(self) -> AsyncLimiter:
        """What decides."""
        return self.node.limiter

    @property
    def store_problem(self) -> str | None:
        """Why the store of the counts does not answer, as checks found it, or the board, which asks once a second; `None` if it does."""
        if not self.node.store.up:
            return self.node.store.last_error
        elsewhere = bool(self.settings.board)
        return None if elsewhere or self.board.reachable else self.board.problem

    @property
    def rules(self) -> Any:
        """The rules that are followed, or `None`."""
        return self.node.rules


def desk_of(node: Node) -> Desk:
    """The desk of a node, which is equipped if it was not."""
    equipped(node)
    board, recorder = node.board, node.recorder
    assert isinstance(board, Board)
    assert isinstance(recorder, Recorder)
    return Desk(node, board, recorder, node.auth, node.audit)


def equipped(node: Node) -> Node:
    """The node, with what it lacked. Everything wrong with the settings is told here, as a `ConfigError`."""
    settings = node.settings
    if node.auth is None:
        hosts = None if settings.tokens else hosts_for(settings.host, settings.allowed_hosts)
        with settings.blamed("tokens" if settings.tokens else "check_needs_token"):
            node.auth = Auth(
                settings.tokens, checks_need_token=settings.check_needs_token, hosts=hosts
            )
        with settings.blamed("host"):
            require_safe_bind(settings.host, node.auth)
    if isinstance(node.recorder, NoRecorder):
        node.recorder = Recorder()
    if isinstance(node.board, NoBoard):
        with settings.blamed("board"):
            node.board = _board(node)
    if node.audit is None:
        with settings.blamed("audit_log"):
            node.audit = AuditLog(_audit_path(node), node=node_id(node))
    if node.certificate is None and settings.tls_cert:
        with settings.blamed("tls_cert"):
            node.certificate = Certificate(settings.tls_cert, settings.tls_key)
    return node


def node_id(node: Node) -> str:
    """The name of a node: as the settings say, or after its host and port; each worker has its own."""
    settings = node.settings
    name = settings.node_id or f"{socket.gethostname()}:{node.port}"
    return f"{name}/{node.worker}" if settings.workers > 1 else name


def _board(node: Node) -> Board:
    settings = node.settings
    store, alone = _store(settings)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    identity = Identity(
        id=node_id(node),
        address=f"{host}:{node.port}",
        version=__version__,
        engine=settings.store,
        ttl_us=round(settings.node_ttl * US_PER_SECOND),
    )
    heartbeat_us = round(settings.heartbeat * US_PER_SECOND)
    report = partial(_report, node, alone=alone)
    return Board(store, identity, report=report, heartbeat_us=heartbeat_us)


def _report(node: Node, *, alone: bool) -> Report:
    """What the node tells the others, once a second; what it says about itself is brought up to date first."""
    board, recorder = node.board, node.recorder
    assert isinstance(board, Board)
    assert isinstance(recorder, Recorder)
    version = "" if node.rules is None else str(node.rules.current.version)
    board.describe(rules=version, draining=node.draining)
    return recorder.report(alone=alone, offset_us=board.offset_us)


def _store(settings: Settings) -> tuple[Store, bool]:
    """Where the board lies, and whether a node keeps its lists to itself."""
    url = settings.board or settings.engine
    if not url.startswith("memory:"):
        from ..board.redis import RedisStore  # noqa: PLC0415 - only those who use it need hiredis

        store = RedisStore(url, namespace=settings.namespace)
        # Who wants hashes in the store does not want lists of keys there; each node keeps its own.
        return store, store.hash_keys
    if settings.workers > 1:
        raise ConfigError(
            "several workers cannot meet in memory; name a Redis in 'board', or leave it to the engine"
        )
    return MemoryStore(file=_board_file(settings)), True


def _board_file(settings: Settings) -> str | None:
    """The file that a board in memory is kept in: the one it names, or one beside the engine's own."""
    if settings.board:
        return memory_options(settings.board, BOARD_OPTIONS).get("file")
    state_file = memory_options(settings.engine).get("state_file")
    return f"{state_file}.board" if state_file else None


def _audit_path(node: Node) -> str | None:
    path = node.settings.audit_log
    if not path:
        return None
    return f"{path}.{node.worker}" if node.settings.workers > 1 else path
