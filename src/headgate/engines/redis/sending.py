"""Send with repair: send a command to the responsible server, and repair failures that can be repaired.

A generator without I/O, as in `headgate/_flow.py`: it yields the next action and is sent the outcome. Both shells drive
it and enforce the deadline. It retries only what was certainly not carried out.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from .failures import (
    CANNOT,
    Answered,
    NotSent,
    Refused,
    Repair,
    Unanswered,
    in_a_cluster,
    redirection,
    refused,
    repair_of,
    skipped,
    unanswered,
)
from .options import shown
from .scripts import library
from .unresponsive import NO_ADDRESS

if TYPE_CHECKING:
    from .options import Address
    from .scripts import Dialect, Script
    from .topology import Command, Topology

FIRST_PAUSE = 0.005
LAST_PAUSE = 0.1


class RoutedCommand(NamedTuple):
    """A command, its slot, and the script it calls, if any: by FCALL or by EVALSHA."""

    command: Command
    slot: int = 0
    script: Script | None = None


class Send(NamedTuple):
    """Send this command to that server and return its reply; an error reply is a value."""

    address: Address
    command: Command
    asking: bool = False


class Discover(NamedTuple):
    """Find the responsible server; raises `NotSent` while there is none, `Refused` if that is permanent."""


class Drop(NamedTuple):
    """Close connections to that server: its role has changed."""

    address: Address


class Delay(NamedTuple):
    """Wait a little, if so because of a server's answer."""

    seconds: float
    reason: Answered | None = None


Step: TypeAlias = Send | Discover | Drop | Delay
SendSteps: TypeAlias = Generator[Step, Any, Any]


def send_with_repair(routed: RoutedCommand, topology: Topology, dialect: Dialect) -> SendSteps:
    """Return the reply, or raise `EngineError` if the server refuses or goes silent."""
    command, pauses = routed.command, _growing_delays()
    asked: Address | None = None
    moves = 0
    while True:
        address = asked or topology.address(routed.slot)
        if topology.skips(address or NO_ADDRESS):
            raise skipped("the server of this slot" if address is None else shown(address))
        if address is None:
            yield from _search(topology, pauses)
            continue
        asking, asked = asked is not None, None
        try:
            reply = yield Send(address, command, asking)
        except NotSent:
            topology.forget(address)
            yield next(pauses)
            continue
        except (Refused, Unanswered) as error:
            topology.forget(address)
            raise (
                refused(str(error)) if isinstance(error, Refused) else unanswered(error)
            ) from error
        note_reply(reply, address, topology)
        if not isinstance(reply, Exception) and command[0] != b"FUNCTION":
            return reply
        repair = repair_of(str(reply))
        otherwise = _alternative_command(routed, command, reply, dialect)
        if otherwise is not None:
            command = otherwise
            asked = address if asking else None
        elif repair is Repair.ASK:
            asked = _named(str(reply), address)
        else:
            moves += repair is Repair.FOLLOW
            yield from _repaired(repair, str(reply), address, topology)
            # A second redirection means that the servers do not agree yet on the slot's owner.
            if repair is not Repair.FOLLOW or moves > 1:
                reason = Answered(f"{shown(address)} answered: {reply}")
                yield next(pauses)._replace(reason=reason)


def note_reply(reply: Any, address: Address, topology: Topology) -> None:
    """Record that a server works, unless its reply says that it cannot do anything yet."""
    if not isinstance(reply, Exception) or repair_of(str(reply)) is not Repair.WAIT:
        topology.answered(address)
    elif not str(reply).startswith("TRYAGAIN"):  # That concerns one slot, which is being moved.
        topology.failed(address)


def _search(topology: Topology, pauses: Iterator[Delay]) -> Generator[Step, Any, None]:
    """Find the responsible server, or wait a little before the next attempt."""
    try:
        yield Discover()
        topology.answered(NO_ADDRESS)
    except NotSent:
        topology.failed(NO_ADDRESS)
        yield next(pauses)
    except Refused as error:
        raise refused(str(error)) from error


def _alternative_command(
    routed: RoutedCommand, command: Command, reply: Any, dialect: Dialect
) -> Command | None:
    """The next way to run a script, after the last one failed: load the library, or send the script."""
    script, message = routed.script, str(reply)
    if script is None:
        return None
    call = (*dialect.words(script), *routed.command[2:])
    match command[0], repair_of(message):
        case b"FUNCTION", _ if not isinstance(reply, Exception) or "already exists" in message:
            return call
        case b"FCALL", Repair.LOAD:
            return b"FUNCTION", b"LOAD", library()
        case ((b"FCALL" | b"FUNCTION"), _) if message.startswith(CANNOT):
            dialect.functions = False
            return b"EVALSHA", script.sha, *routed.command[2:]
        case _, Repair.SEND:
            return b"EVAL", script.text, *routed.command[2:]
    return None


def _repaired(
    repair: Repair, message: str, address: Address, topology: Topology
) -> Generator[Step, Any, None]:
    """Update the topology from an error reply."""
    match repair:
        case Repair.FOLLOW:
            if not topology.clustered:
                raise in_a_cluster(shown(address))
            topology.moved(redirection(message)[0], _named(message, address))
        case Repair.REDISCOVER:
            yield Drop(address)
            topology.forget(address)
        case Repair.LEAVE:
            topology.forget(address)
        case Repair.WAIT:
            pass
        case _:
            raise refused(message)


def _named(message: str, address: Address) -> Address:
    """The server in a redirection; without a host it is another port of the server that answered."""
    _, host, port = redirection(message)
    return host or address[0], port


def _growing_delays() -> Generator[Delay, None, None]:
    seconds = FIRST_PAUSE
    while True:
        yield Delay(seconds)
        seconds = min(2 * seconds, LAST_PAUSE)
