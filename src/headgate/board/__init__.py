"""The board: the data that all nodes of a service share. Nothing here decides a request.

It has the nodes, the traffic of each, the keys they deny right now, and per-key settings. Every node writes its own
part once a second and reads the others', in one round trip; in between it reads `Board.view`, an immutable snapshot
that is swapped as a whole. When the store is down, the last snapshot stays, with its age.
"""

from .board import Board
from .key_settings import Ban, KeyOverride
from .memory import MemoryStore
from .model import Block, BoardView, NodeIdentity, NodeSeen, Report, Second, Totals
from .store import BoardStore
from .traffic import TrafficRates, figures_of

__all__ = [
    "Ban",
    "Block",
    "Board",
    "BoardStore",
    "BoardView",
    "KeyOverride",
    "MemoryStore",
    "NodeIdentity",
    "NodeSeen",
    "Report",
    "Second",
    "Totals",
    "TrafficRates",
    "figures_of",
]
