"""Topology: which server is responsible, and how to find it. No I/O here: commands and replies are values.

A topology answers `address(slot)`. When it does not know (any more), `discovery()` is a generator that leaves the
topology up to date: it yields questions to ask in parallel (`parallel_discovery.py` says when each is sent), and is
sent one answer at a time, in order of arrival. So a silent server delays no caller.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from .failures import Answered, most_useful_reason, reason_of
from .options import shown
from .unresponsive import UnresponsiveServers

if TYPE_CHECKING:
    from .options import Address, Options

Command: TypeAlias = tuple[Any, ...]


class Question(NamedTuple):
    """A command for a server."""

    address: Address
    command: Command


class QuestionReply(NamedTuple):
    """The result of a question: the reply, or an exception if there is none."""

    question: Question
    reply: Any


Discovery: TypeAlias = Generator[list[Question], QuestionReply, Exception | None]
"""Yields questions, is sent the next answer, and returns why it found nothing, if so."""


class Topology(Protocol):
    """Knows the responsible server."""

    @property
    def clustered(self) -> bool:
        """Whether keys have slots."""

    @property
    def masters(self) -> list[Address]:
        """The servers that hold keys, as far as known."""

    def address(self, slot: int) -> Address | None:
        """Where to send a command; `None` if that has to be discovered."""

    def forget(self, address: Address) -> None:
        """Called when a server did not answer, or not as expected."""

    def moved(self, slot: int, address: Address) -> None:
        """Called when a server has named a slot's new owner."""

    def answered(self, address: Address) -> None:
        """Called when a server has carried out a command."""

    def failed(self, address: Address) -> None:
        """Called when a server currently cannot carry out a command."""

    def skips(self, address: Address) -> bool:
        """Whether to skip a server for now, because it does not answer."""

    def discovery(self) -> Discovery:
        """Find the responsible server."""


class SingleServer:
    """The common part of topologies in which one server holds all keys."""

    clustered = False

    def address(self, slot: int) -> Address | None:
        """Where to send a command."""
        raise NotImplementedError

    @property
    def masters(self) -> list[Address]:
        """That server, if it is known."""
        address = self.address(0)
        return [] if address is None else [address]

    def moved(self, slot: int, address: Address) -> None:
        """Do nothing: there are no redirections."""

    def answered(self, address: Address) -> None:
        """Do nothing: with a single server, that is the breaker's job."""

    def failed(self, address: Address) -> None:
        """Do nothing, as in `answered`."""

    def skips(self, address: Address) -> bool:
        """Never."""
        return False


class Standalone(SingleServer):
    """One fixed server."""

    def __init__(self, options: Options) -> None:
        self._address = options.addresses[0]

    def address(self, slot: int) -> Address | None:
        """Where to send a command."""
        return self._address

    def forget(self, address: Address) -> None:
        """Do nothing: there is no other server."""

    def discovery(self) -> Discovery:
        """Nothing to discover."""
        yield from ()
        return None  # Never used: the address is always known.


class Sentinel(SingleServer):
    """One master, whose address the Sentinels know. It must confirm its role before it is used."""

    def __init__(self, options: Options) -> None:
        self._sentinels = list(options.addresses)
        self._name = options.master
        self._master: Address | None = None

    def address(self, slot: int) -> Address | None:
        """The master, if it is known."""
        return self._master

    def forget(self, address: Address) -> None:
        """The master did not answer like one."""
        if self._master == address:
            self._master = None

    def discovery(self) -> Discovery:
        """Ask the Sentinels, then ask the server they name whether it is the master.

        The failure of a named master is more informative than Sentinels that named none. An unknown name is not treated
        as permanent: a Sentinel that has just started may still learn its masters.
        """
        unnamed: list[Exception] = []
        unfit: list[Exception] = []
        named: dict[Address, Address] = {}
        """The servers that were named, and the first Sentinel to name each."""
        ask = (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._name.encode())
        more = [Question(sentinel, ask) for sentinel in self._sentinels]
        waiting = 0
        while waiting + len(more):
            waiting += len(more) - 1
            (who, command), reply = yield more
            more = []
            if command != ask:
                if isinstance(reply, list) and reply and reply[0] == b"master":
                    self._found(who, named[who])
                    return None
                unfit.append(_no_master(who, reply))
            elif not isinstance(reply, list) or len(reply) != 2:
                unnamed.append(self._no_name(who, reply))
            else:
                address = reply[0].decode(), int(reply[1])
                if address not in named:
                    named[address] = who
                    more = [Question(address, (b"ROLE",))]
        return most_useful_reason(unfit or unnamed)

    def _found(self, master: Address, sentinel: Address) -> None:
        """The Sentinel that knew goes first next time. A new list, because another thread may be searching, too."""
        self._master = master
        self._sentinels = [sentinel, *(one for one in self._sentinels if one != sentinel)]

    def _no_name(self, sentinel: Address, reply: Any) -> Exception:
        if reply is not None:
            return reason_of(shown(sentinel), reply)
        return Answered(f"the Sentinel at {shown(sentinel)} has no master named {self._name!r}")


def _no_master(address: Address, role: Any) -> Exception:
    if not isinstance(role, list):
        return reason_of(shown(address), role)
    return Answered(f"Sentinel names {shown(address)}, which is not a master")


class Cluster:
    """Many masters; each slot belongs to one of them."""

    clustered = True

    def __init__(self, options: Options) -> None:
        self._seeds = list(options.addresses)
        self._slots: dict[int, Address] = {}
        self._nodes: list[Address] = []
        self.unresponsive = UnresponsiveServers(options.deciding)
        self.answered, self.failed = self.unresponsive.answered, self.unresponsive.failed
        self.skips = self.unresponsive.skips

    @property
    def masters(self) -> list[Address]:
        """Every server that owns slots."""
        return sorted(set(self._slots.values()))

    def address(self, slot: int) -> Address | None:
        """The slot's owner, if it is known."""
        return self._slots.get(slot)

    def forget(self, address: Address) -> None:
        """A server did not answer: its slots are unknown until another server reports them, and it is asked last."""
        self.failed(address)
        self._slots = {slot: owner for slot, owner in self._slots.items() if owner != address}
        if address in self._nodes:
            self._nodes = [*(one for one in self._nodes if one != address), address]

    def moved(self, slot: int, address: Address) -> None:
        """A server has named a slot's new owner."""
        self._slots = {**self._slots, slot: address}

    def discovery(self) -> Discovery:
        """Ask the known servers for the slot map, until one answers."""
        reasons: list[Exception] = []
        nodes = dict.fromkeys([*self._nodes, *self._seeds])
        more = [Question(node, (b"CLUSTER", b"SLOTS")) for node in nodes]
        for _ in nodes:
            (node, _), rows = yield more
            more = []
            if not isinstance(rows, list):
                reasons.append(reason_of(shown(node), rows))
                continue
            slots, known = _map_of(rows, node)
            if slots:
                self._slots, self._nodes = slots, known
                self.unresponsive.keep_only(known)
                return None
            reasons.append(Answered(f"the Cluster of {shown(node)} has no slots yet"))
        return most_useful_reason(reasons)


def _map_of(rows: list[Any], node: Address) -> tuple[dict[int, Address], list[Address]]:
    """The owner of each slot, and all servers, from one server's reply."""
    slots: dict[int, Address] = {}
    nodes: list[Address] = []
    for first, last, *servers in rows:
        addresses = [(one[0].decode() or node[0], int(one[1])) for one in servers]
        nodes += addresses
        slots.update(dict.fromkeys(range(first, last + 1), addresses[0]))
    return slots, list(dict.fromkeys(nodes))


def topology_of(options: Options) -> Topology:
    """The topology for these options."""
    if options.topology == "cluster":
        return Cluster(options)
    return Sentinel(options) if options.topology == "sentinel" else Standalone(options)
