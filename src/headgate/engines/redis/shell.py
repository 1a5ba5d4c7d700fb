"""The common part of the two shells: the topology, the codec, and the methods that are not decisions."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ...clock import SystemClock
from ..base import require_page
from .codec import Codec
from .failures import clock_keeps_jumping
from .keys import KeyCodec
from .kind import description_of
from .operations import STALE_TRIES, Operations, Scan
from .options import Options, parse_url, shown
from .scripts import Dialect
from .topology import Cluster, topology_of
from .unresponsive import NO_ADDRESS, UnresponsiveServers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from ...algorithms import Limit
    from ...charge import ChargeSet
    from ...clock import Clock
    from ...decision import Decision
    from ..base import EngineDescription, KeyPage, Usage
    from ..verbs import Verb
    from .options import Address
    from .sending import RoutedCommand
    from .topology import Topology


class Shell:
    """An engine without its I/O. Subclasses for other kinds of servers override the protocol.

    `url` is a URL or `Options`. With a `clock`, tests control the time; otherwise the server's clock counts. `colocate`
    groups keys on Cluster: those for which it returns the same text share a slot. `logger` gets a warning about a
    server that may evict keys; the default is "headgate".
    """

    _parse: Callable[[str], Options] = staticmethod(parse_url)

    def __init__(
        self,
        url: str | Options,
        *,
        clock: Clock | None = None,
        colocate: Callable[[str], str] | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        self.options = self._parse(url) if isinstance(url, str) else url
        self.clock: Clock = SystemClock() if clock is None else clock
        self._test_clock = clock is not None
        self._topology = self._new_topology()
        self._colocate = colocate
        self._log = logging.getLogger("headgate") if logger is None else logger
        self._dialect = self._new_dialect()
        if isinstance(self._topology, Cluster):
            unresponsive = self._topology.unresponsive
            unresponsive.on_change = partial(self._log_unresponsive, unresponsive)
        self._use_namespace("")
        self._open()

    def _log_unresponsive(self, unresponsive: UnresponsiveServers, address: Address) -> None:
        """Log once when a server of a Cluster goes silent, and once when it is back."""
        server = "a server that a slot belongs to" if address == NO_ADDRESS else shown(address)
        if unresponsive.is_unresponsive(address):
            self._log.error("%s does not answer and is not used for now", server)
        else:
            self._log.warning("%s answers again", server)

    def _new_topology(self) -> Topology:
        """Create the topology, which knows the responsible server."""
        return topology_of(self.options)

    def _new_dialect(self) -> Dialect:
        """Create the dialect, which formats calls."""
        return Dialect()

    def _new_operations(self, namespace: str) -> Operations:
        """Create the verbs of one namespace."""
        options = self.options
        keys = KeyCodec(
            namespace, self._topology.clustered, options.secret, options.hash_keys, self._colocate
        )
        codec = Codec(
            keys, self.clock.now_us, test_clock=self._test_clock, receipts=options.receipts
        )
        return Operations(codec, options.max_batch, self._dialect)

    def _open(self) -> None:
        """Prepare the connections of this shell."""
        raise NotImplementedError

    def _run(self, command: RoutedCommand) -> Any:
        """Send a command within the deadline; returns its reply, or an awaitable of it."""
        raise NotImplementedError

    def _run_to_completion(self, command: RoutedCommand) -> Any:
        """`_run` for giving something back: as quickly as a decision, and sent even if the caller stops waiting."""
        raise NotImplementedError

    def _ask_node(self, address: Address, command: tuple[Any, ...]) -> Any:
        """Call one server; returns its reply, or an awaitable of it."""
        raise NotImplementedError

    def _nodes(self) -> Any:
        """The addresses of all servers, or an awaitable of them."""
        raise NotImplementedError

    def _settle(self, token: str, actual: int | Sequence[int]) -> Verb[bool]:
        replies = []
        for command in self._operations.settle(token, actual):
            reply = yield self._run_to_completion(command)
            replies.append(reply)
        return self._operations.settled(replies, actual)

    def _settle_each(self, settlements: Sequence[tuple[str, int]]) -> Verb[None]:
        for command in self._operations.settle_each(settlements):
            yield self._run_to_completion(command)

    def _withdraw(self, request: ChargeSet) -> Verb[None]:
        for command in self._operations.withdraw(request):
            yield self._run_to_completion(command)

    def _leave_line(self, decision: Decision) -> Verb[None]:
        command = self._operations.leave_line(decision)
        if command is not None:
            yield self._run_to_completion(command)

    def _usage(self, key: str, limit: Limit, rule: str | None) -> Verb[Usage]:
        now_us = None
        for _ in range(STALE_TRIES):
            reply = yield self._run(self._operations.usage(key, limit, rule, now_us))
            usage = self._operations.read_usage(reply, key)
            if usage is not None:
                return usage
            now_us = reply[0]
        raise clock_keeps_jumping()

    def _list_keys(self, prefix: str, cursor: str, limit: int) -> Verb[KeyPage]:
        require_page(prefix, cursor, limit)
        nodes: list[Address] = yield self._nodes()
        listing = self._operations.listing(prefix, cursor, limit, len(nodes))
        outcome: Any = None
        try:
            while True:
                match listing.send(outcome):
                    case Scan(node, command):
                        outcome = yield self._ask_node(nodes[node], command)
                    case routed:
                        outcome = yield self._run(routed)
        except StopIteration as done:
            page: KeyPage = done.value
            return page

    def _known_nodes(self) -> list[Address]:
        """The servers that hold keys, as far as known."""
        return self._topology.masters

    @property
    def unguarded(self) -> Self:
        """See `Engine.unguarded`."""
        return self

    def describe(self) -> EngineDescription:
        """See `Engine.describe`."""
        return description_of(self.options, in_part=self._in_part, namespace=self._namespace)

    @property
    def _namespace(self) -> str:
        return self._operations.codec.keys.namespace

    @property
    def _in_part(self) -> Callable[[], bool] | None:
        """A function that returns whether some servers of a Cluster answer."""
        topology = self._topology
        return topology.unresponsive.in_part if isinstance(topology, Cluster) else None

    def deciding_within(self, seconds: float) -> Self:
        """See `HasDecisionDeadline.deciding_within`.

        Everything else keeps the usual deadline, including decisions that wait for the first connection.
        """
        if self.options.decision_deadline is not None:
            return self
        return type(self)(
            replace(self.options, decision_deadline=seconds),
            clock=self.clock if self._test_clock else None,
            colocate=self._colocate,
            logger=self._log,
        )

    def scoped(self, namespace: str) -> Self:
        """The same connections, under another namespace."""
        twin = copy.copy(self)
        twin._use_namespace(namespace)
        return twin

    def _use_namespace(self, namespace: str) -> None:
        self._operations = self._new_operations(namespace)
