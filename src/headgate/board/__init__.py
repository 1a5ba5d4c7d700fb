"""The board: what all nodes of a service know about each other. Nothing here decides anything.

Who is there, how much traffic each of them sees, whom they deny right now, and what people have set for single keys. Every
node brings its own part once a second and takes the others' along, in one round trip; in between it reads `Board.view`,
a snapshot that never changes and is swapped as a whole. When the store is away, the last snapshot stays and says how
old it is.
"""

from .board import Board
from .kept import Ban, KeyLimit
from .memory import MemoryStore
from .model import Block, Identity, NodeSeen, Report, Second, Totals, View
from .store import Store
from .traffic import Figures, figures_of

__all__ = [
    "Ban",
    "Block",
    "Board",
    "Figures",
    "Identity",
    "KeyLimit",
    "MemoryStore",
    "NodeSeen",
    "Report",
    "Second",
    "Store",
    "Totals",
    "View",
    "figures_of",
]
