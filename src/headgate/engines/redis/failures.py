"""Failures: what went wrong, and whether the request may have been carried out anyway.

A **definite** failure means it was not: it can be repaired and tried again within the deadline. An **indefinite** one
(no answer, a connection lost after sending) is never retried, because that could charge twice; the caller gets an
error.
"""

from __future__ import annotations

import copy
from enum import Enum
from typing import TYPE_CHECKING, Final

from ...errors import EngineBusy, EngineConnectionError, EngineError, EngineTimeout

if TYPE_CHECKING:
    from collections.abc import Sequence


class NotSent(Exception):  # noqa: N818 - it is an outcome
    """The connection failed, or was known to be broken before anything was sent."""


class NotConnected(NotSent):
    """There is no connection: refused, broken, or the name does not resolve."""


class Answered(NotSent):
    """A server answered, but not usefully: it does not know the responsible server, or cannot serve us yet."""


class Unanswered(Exception):  # noqa: N818 - it is an outcome
    """Something was sent and no answer came: it may or may not have been carried out."""


class Silent(Unanswered):
    """The same because of a timeout, on a connection that is still open."""


class Refused(Exception):  # noqa: N818 - it is an outcome
    """The server refuses us: our user, password or database. Retrying does not help."""


class Repair(Enum):
    """What to do about an error reply. In every case the server has not carried out the command."""

    LOAD = "load the library of functions"
    SEND = "send the script itself"
    FOLLOW = "go where the slot is now"
    ASK = "go there for this once"
    REDISCOVER = "this server is not the one to ask any more: drop the connection and look for it"
    LEAVE = "this server is about to end: ask another one, and let it answer what it was sent"
    WAIT = "the server cannot answer yet"
    GIVE_UP = "nothing helps"


REPAIRS: Final = {
    "NOSCRIPT": Repair.SEND,
    "MOVED": Repair.FOLLOW,
    "ASK": Repair.ASK,
    "READONLY": Repair.REDISCOVER,
    "MASTERDOWN": Repair.REDISCOVER,
    "LOADING": Repair.WAIT,
    "TRYAGAIN": Repair.WAIT,
    "CLUSTERDOWN": Repair.WAIT,
    "BUSY": Repair.WAIT,
    "HGDRAINING": Repair.LEAVE,
}
TRANSIENT: Final = ("OOM", "NOREPLICAS", "MISCONF", "MAX", "ERR max number of clients reached")
PERMANENT_REFUSALS: Final = (
    "WRONGPASS", "NOAUTH", "NOPERM", "DENIED", "ERR AUTH", "ERR Client sent AUTH",
    "ERR invalid password", "ERR invalid DB", "ERR DB index", "ERR SELECT", "ERR unknown command",
)  # fmt: skip
"""Errors on a new connection that are permanent."""

NO_CLUSTER: Final = "ERR This instance has cluster support disabled"
NO_SUCH_FUNCTION: Final = "ERR Function not found"
CANNOT: Final = (
    "NOPERM",
    "ERR unknown command",
    "ERR unknown subcommand",
    "ERR Unknown subcommand",
)
"""Errors of a server that does not support functions, or does not allow using or loading them."""


def repair_of(message: str) -> Repair:
    """The repair for an error reply, by its first word."""
    if message.startswith(NO_SUCH_FUNCTION):
        return Repair.LOAD
    return REPAIRS.get(message.split(" ", 1)[0], Repair.GIVE_UP)


def redirection(message: str) -> tuple[int, str, int]:
    """`(slot, host, port)` of a MOVED or ASK; an empty host means the one that answered."""
    try:
        _, slot, where = message.split(" ")[:3]
        host, _, port = where.rpartition(":")
        return int(slot), host, int(port)
    except ValueError:
        raise refused(message) from None


def reason_of(address: str, reply: object) -> Exception:
    """Why a server could not help with a discovery: its reply, or that there was none."""
    if isinstance(reply, NotSent | Refused | Unanswered):
        return reply
    words = str(reply)
    if words.startswith(NO_CLUSTER):
        return Refused(f"{address} is not part of a Cluster ({words}); use a redis:// URL")
    return (Refused if words.startswith(PERMANENT_REFUSALS) else Answered)(
        f"{address} answered: {words}"
    )


def most_useful_reason(reasons: Sequence[Exception]) -> Exception:
    """The most useful of several reasons: a permanent one, else the last answer, else a failure to get one."""
    return max(
        reversed(reasons), key=lambda one: (isinstance(one, Refused), isinstance(one, Answered))
    )


def refused(message: str) -> EngineError:
    """The error for a refusal; nothing was charged."""
    transient = message.startswith(TRANSIENT)
    return EngineError(f"the store refused the request: {message}", transient=transient)


def timed_out(
    seconds: float, reason: Exception | None = None, *, sent: bool = False
) -> EngineError:
    """The error for no answer within the deadline; if it was sent, it may have been charged."""
    why = "the server is slow or gone" if reason is None else str(reason)
    known = "; the request may have been charged" if sent else ""
    kind: type[EngineError]
    kind = EngineConnectionError if isinstance(reason, NotConnected) else EngineTimeout
    return kind(
        f"no answer from the store within {seconds:.3g} s ({why}){known}",
        transient=True,
        indefinite=sent,
    )


def skipped(server: str) -> EngineError:
    """The error for a server that was not called, because it did not answer recently."""
    return EngineConnectionError(
        f"the request was not sent, because {server} does not answer", transient=True
    )


def too_many_wait(many: int) -> EngineError:
    """The error for a full queue; nothing was sent."""
    return EngineBusy(
        f"Redis is too slow to answer one more request in time ({many} wait already)",
        transient=True,
    )


def no_answer(reason: Exception) -> EngineError:
    """The error for a read that was not answered."""
    if isinstance(reason, Refused):
        return refused(str(reason))
    kind: type[EngineError]
    broken = isinstance(reason, NotConnected) or type(reason) is Unanswered
    kind = EngineConnectionError if broken else EngineTimeout
    return kind(f"the store did not answer: {reason}", transient=True)


def unexpected_reply(reply: object) -> EngineError:
    """The error for a reply that cannot come from our scripts."""
    shown = repr(reply)[:80]
    return EngineError(
        f"the store answered with {shown}, which is not a valid answer; the request may have been charged",
        transient=False,
        indefinite=True,
    )


def in_a_cluster(address: str) -> EngineError:
    """The error for a redirection by a server that is configured as the only one."""
    return EngineError(
        f"redis at {address} is part of a Cluster; use a redis+cluster:// URL", transient=False
    )


def unanswered(reason: Unanswered) -> EngineError:
    """The error for a call without an answer: it may have been charged."""
    kind: type[EngineError]
    if isinstance(reason, Silent):
        words, kind = f"the store did not answer in time ({reason})", EngineTimeout
    else:
        words = f"the connection to the store broke before the answer came ({reason})"
        kind = EngineConnectionError
    return kind(f"{words}; the request may have been charged", transient=True, indefinite=True)


def clock_keeps_jumping() -> EngineError:
    """The error for a store whose clock was in another period, however often a calendar was sent."""
    return EngineError(
        "the store's clock is unstable: it was in another calendar period on every attempt",
        transient=True,
    )


def copy_for_caller(error: Exception) -> Exception:
    """A copy of the error for one of many callers, so that each raises and changes its own object."""
    try:
        twin = copy.copy(error)
    except Exception:  # noqa: BLE001 - it cannot be copied
        twin = EngineError(f"the request failed: {error!r}", transient=False, indefinite=True)
    twin.__cause__ = error.__cause__ or error
    return twin
