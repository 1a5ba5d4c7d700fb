"""Opening a board: by its own URL, or next to an engine."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ..engines.registry import kind_of
from ..errors import ConfigError

if TYPE_CHECKING:
    from ..clock import Clock
    from .store import BoardStore


def open_board_store(board: str, engine: str, namespace: str, clock: Clock) -> BoardStore:
    """The store that the URL `board` names, or by default the one that fits the engine.

    A store without its own clock uses `clock`, the engine's.
    """
    kind = kind_of(board or engine)
    if not kind.board:
        raise ConfigError(
            f"a {kind.schemes[0]}:// engine has no board; set 'board' to a Redis or etcd URL"
        )
    module = importlib.import_module(kind.board)
    store: BoardStore = (
        module.open_store(board, namespace, clock)
        if board
        else module.open_store_beside(engine, namespace, clock)
    )
    return store
