"""Boards on a real etcd."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from headgate.board.etcd import open_store
from headgate.clock import SystemClock

if TYPE_CHECKING:
    from headgate.board.etcd import EtcdBoardStore
    from headgate.clock import Clock
    from tests.servers.etcd import Etcd

_BOARDS = itertools.count(1)


def new_board(servers: Etcd) -> str:
    """The URL of a board that nobody has used."""
    return f"etcd://{servers.hosts}/board{next(_BOARDS)}"


def etcd_store(url: str, namespace: str = "", clock: Clock | None = None) -> EtcdBoardStore:
    """One more connection to a board."""
    return open_store(url, namespace, clock or SystemClock())
