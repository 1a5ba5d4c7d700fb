"""Topology: which server to ask, and how to find out. No I/O here: commands go out and replies come in as values.

A topology answers `address(slot)`. When it does not know (any more), `discovery()` is a generator that yields
`(address, command)` pairs to be sent to seed servers, is sent each reply (or an exception), and leaves the topology
up to date.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeAlias

from .failures import Answered, most_telling, reason_of
from .options import shown

if TYPE_CHECKING:
    from .options import Address, Options

Command: TypeAlias = tuple[Any, ...]
Discovery: TypeAlias = Generator[tuple["Address", Command], Any, Exception | None]
"""Yields what to ask whom, is sent replies (an exception when there is none), returns why it found nothing, if so."""


class Standalone:
    """One server, always the same."""

    clustered = False

    def __init__(self, options: Options) -> None:
        self._address = options.addresses[0]

    def address(self, slot: int) -> Address | None:
        """Where to send a command."""
        return self._address

    def forget(self, address: Address) -> None:
        """There is no other one to look for."""

    def moved(self, slot: int, address: Address) -> None:
        """A lone server does not redirect."""

    def discovery(self) -> Discovery:
        """Nothing to find out."""
        yield from ()
        return None


class Sentinel:
    """One master, which Sentinels know by name. It is asked for its role before it is believed."""

    clustered = False

    def __init__(self, options: Options) -> None:
        self._sentinels = list(options.addresses)
        self._name = options.master
        self._master: Address | None = None

    def address(self, slot: int) -> Address | None:
        """The master, when it is known."""
        return self._master

    def forget(self, address: Address) -> None:
        """The master did not answer like one."""
        if self._master == address:
            self._master = None

    def moved(self, slot: int, address: Address) -> None:
        """A master does not redirect."""

    def discovery(self) -> Discovery:
        """Ask one Sentinel after the other, and the server they name whether it is the master.

        What became of a master that was named says more than those who named none. That nobody knows the name is not
        taken as final: a Sentinel that was just started learns its masters yet.
        """
        unnamed: list[Exception] = []
        unfit: list[Exception] = []
        for sentinel in self._sentinels:
            # One that hangs takes all the time there is; the next search begins with another.
            # New lists throughout: another thread may be searching, too.
            self._sentinels = [*(one for one in self._sentinels if one != sentinel), sentinel]
            named = yield sentinel, (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._name.encode())
            if not isinstance(named, list) or len(named) != 2:
                unnamed.append(self._no_name(sentinel, named))
                continue
            address = named[0].decode(), int(named[1])
            role = yield address, (b"ROLE",)
            if isinstance(role, list) and role and role[0] == b"master":
                self._master = address
                # The one that knew comes first the next time.
                others = (one for one in self._sentinels if one != sentinel)
                self._sentinels = [sentinel, *others]
                return None
            unfit.append(_no_master(address, role))
        return most_telling(unfit or unnamed)

    def _no_name(self, sentinel: Address, reply: Any) -> Exception:
        if reply is not None:
            return reason_of(shown(sentinel), reply)
        return Answered(f"the Sentinel at {shown(sentinel)} knows no master called {self._name!r}")


def _no_master(address: Address, role: Any) -> Exception:
    if not isinstance(role, list):
        return reason_of(shown(address), role)
    return Answered(f"Sentinel names {shown(address)}, which is no master")


class Cluster:
    """Many masters; each slot belongs to one of them."""

    clustered = True

    def __init__(self, options: Options) -> None:
        self._seeds = list(options.addresses)
        self._slots: dict[int, Address] = {}
        self._nodes: list[Address] = []

    @property
    def masters(self) -> list[Address]:
        """Every server that owns slots."""
        return sorted(set(self._slots.values()))

    def address(self, slot: int) -> Address | None:
        """Who owns the slot, as far as is known."""
        return self._slots.get(slot)

    def forget(self, address: Address) -> None:
        """A server did not answer: what it owned is unknown until somebody says more."""
        self._slots = {slot: owner for slot, owner in self._slots.items() if owner != address}

    def moved(self, slot: int, address: Address) -> None:
        """A server said who owns a slot now."""
        self._slots = {**self._slots, slot: address}

    def discovery(self) -> Discovery:
        """Ask the servers we know for the map, until one answers."""
        reasons: list[Exception] = []
        for node in dict.fromkeys([*self._nodes, *self._seeds]):
            if node in self._nodes:  # As for a Sentinel: one that hangs is not asked first again.
                self._nodes = [*(one for one in self._nodes if one != node), node]
            rows = yield node, (b"CLUSTER", b"SLOTS")
            if not isinstance(rows, list):
                reasons.append(reason_of(shown(node), rows))
                continue
            slots: dict[int, Address] = {}
            nodes = []
            for first, last, *servers in rows:
                addresses = [(one[0].decode() or node[0], int(one[1])) for one in servers]
                nodes += addresses
                slots.update(dict.fromkeys(range(first, last + 1), addresses[0]))
            if slots:
                self._slots, self._nodes = slots, list(dict.fromkeys(nodes))
                return None
            reasons.append(Answered(f"the Cluster of {shown(node)} has no slots yet"))
        return most_telling(reasons)


def topology_of(options: Options) -> Standalone | Sentinel | Cluster:
    """The topology that a URL speaks of."""
    if options.topology == "cluster":
        return Cluster(options)
    return Sentinel(options) if options.topology == "sentinel" else Standalone(options)
