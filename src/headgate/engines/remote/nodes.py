"""Nodes: which of several nodes to call. All are equivalent, so a client stays with one as long as it answers."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from ..redis.failures import most_useful_reason, reason_of
from ..redis.options import shown
from ..redis.topology import Question, SingleServer

if TYPE_CHECKING:
    from ..redis.options import Address, Options
    from ..redis.topology import Discovery


class Nodes(SingleServer):
    """Nodes that share their counts. Each client starts with a random one, to spread the load."""

    def __init__(self, options: Options) -> None:
        nodes = list(options.addresses)
        random.shuffle(nodes)
        self._nodes = nodes
        self._chosen: Address | None = nodes[0] if len(nodes) == 1 else None

    def address(self, slot: int) -> Address | None:
        """The node that answered last."""
        return self._chosen

    def forget(self, address: Address) -> None:
        """A node did not answer: try the others before it, if there are any."""
        if len(self._nodes) > 1 and address in self._nodes:
            self._nodes = [*(one for one in self._nodes if one != address), address]
            if self._chosen == address:
                self._chosen = None

    def discovery(self) -> Discovery:
        """Try one after the other, without a long wait for any; a node that is shutting down says so."""
        reasons: list[Exception] = []
        nodes = self._nodes
        more = [Question(node, (b"PING",)) for node in nodes]
        for _ in nodes:
            (node, _), reply = yield more
            more = []
            if reply in (b"PONG", "PONG"):
                self._chosen = node
                return None
            reasons.append(reason_of(shown(node), reply))
        return most_useful_reason(reasons)
