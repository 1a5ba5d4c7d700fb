"""The commands of the Redis protocol, and the roles they need."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ... import __version__
from ...engines.remote import calls
from ...engines.remote.serving import PackedCalls, WireError
from ...errors import EngineError, HeadgateError, UsageError
from ...guards.stack import as_asked
from ...regions.messages import COMMAND
from ..front import Front, Pending
from ..security.audit import AuditedChange
from ..security.auth import ANYBODY
from . import replies
from .limits import LimitCommands, keys_of
from .node_engine import NodeEngine
from .reading import TypedLine

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence

    from ...engines.remote.serving import Handler
    from ..node import Node
    from ..security.tokens import Role
    from .reading import Words
    from .session import Session

VERB_ROLES: Final[dict[bytes, Role]] = {b"reset": "operator", b"list": "viewer"}
"""Packed calls that need more than permission to check."""
DRAINING: Final = "HGDRAINING this node is shutting down; use another one"
THROTTLE: Final = b"CL.THROTTLE"
OTHER: Final = "other"
PACKED: Final = 1_000_000
"""Words of a packed call: as many as the longest command has room for."""
BEHIND_KEY: Final = 2
"""Where the words begin that follow a command's key."""


class LaterReply(NamedTuple):
    """A reply that is not there yet: `answer` is an awaitable, or a `Pending`; `finish` converts it to bytes."""

    answer: Awaitable[Any] | Pending[Any]
    finish: Callable[[Callable[[], Any]], bytes]


class RespCommand(NamedTuple):
    """One command. `arity` is its number of words, including its name; negative for a minimum."""

    run: Callable[[Session, Words], Any]
    arity: int
    summary: str
    role: Role | None = "checker"
    key: int = 0
    """The index of the word that is a key, if any."""
    writes: bool = False
    most: int = 0
    """The maximum number of words if `arity` is negative: few, unless the command is about many keys."""

    def row(self, name: bytes) -> list[Any]:
        """Its row in the reply to `COMMAND`."""
        flags = ["write" if self.writes else "readonly", "fast"]
        return [name.lower(), self.arity, flags, self.key, self.key, int(self.key > 0)]

    def fits(self, many: int) -> bool:
        """Whether this number of words is valid."""
        return many == self.arity if self.arity > 0 else -self.arity <= many <= self.most


class Commands:
    """The commands of a node. Connections call `answers`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._log = logging.getLogger("headgate.service")
        front = Front(node)
        self._engine = NodeEngine(front)
        self._limits = LimitCommands(node, front, self._engine)
        self._packed = PackedCalls(NodeEngine(front, as_asked(front.engine)))
        self._counts: Counter[tuple[str, str]] = node.recorder.resp
        self._table = self._commands()
        self._runs = {THROTTLE: self._limits.throttle_run, b"HG.HIT": self._limits.hit_run}
        peers: dict[bytes, Handler] = getattr(front.engine.unguarded, "peer_commands", {})
        for name, handler in peers.items():
            self._table[name] = _for_peers(handler)

    def _commands(self) -> dict[bytes, RespCommand]:
        limits = self._limits
        return {
            THROTTLE: RespCommand(
                lambda _, words: limits.throttle(words), -5,
                "take from a token bucket: key max_burst count period [quantity]", key=1, writes=True, most=6,
            ),
            b"HG.HIT": RespCommand(
                lambda _, words: limits.hit(words), -3,
                "take units of a rate: key rate [COST n] [ALGORITHM name]", key=1, writes=True, most=7,
            ),
            b"HG.PEEK": RespCommand(
                lambda _, words: limits.peek(words), -3,
                "what HG.HIT would return: key rate [COST n] [ALGORITHM name]", key=1, most=7,
            ),
            b"HG.RESET": RespCommand(
                lambda session, words: limits.reset(words, session.caller or ANYBODY), -3,
                "reset a key's usage: key rate [ALGORITHM name]", "operator", 1, writes=True, most=5,
            ),
            b"HG": RespCommand(
                self._call, -3, "a packed call, from the remote engine", writes=True, most=PACKED,
            ),
            COMMAND: RespCommand(self._region, 2, "a message from another region: message", "operator", writes=True),
            b"PING": RespCommand(self._ping, -1, "whether the node serves: [message]", most=2),
            b"ECHO": RespCommand(lambda _, words: words[1], 2, "the same: message"),
            b"HELLO": RespCommand(
                lambda session, words: session.hello(words), -1,
                "choose the protocol: [version [AUTH user token] [SETNAME name]]", None, most=7,
            ),
            b"AUTH": RespCommand(_auth, -2, "authenticate with a token: [user] token", None, most=3),
            b"CLIENT": RespCommand(lambda session, words: session.client(words), -2, "about the connection", most=4),
            b"COMMAND": RespCommand(
                self._describe, -1, "list commands: [COUNT | LIST | INFO name... | DOCS name...]", most=100,
            ),
            b"INFO": RespCommand(self._info, -1, "about this node", most=100),
            b"SELECT": RespCommand(_select, 2, "there is one database: 0"),
            b"RESET": RespCommand(_reset, 1, "begin again: RESP2, no name, no token", None),
            b"QUIT": RespCommand(_quit, 1, "close the connection", None),
        }  # fmt: skip

    # Answering

    def answers(self, session: Session, commands: Sequence[Words]) -> Iterator[bytes | LaterReply]:
        """The replies to commands, in order, computed lazily.

        It ends early if the connection is to be closed.
        """
        at, many = 0, len(commands)
        while at < many and not session.ended:
            words = commands[at]
            end, name = at + 1, words[0]
            if name in self._runs and len(words) > BEHIND_KEY and end < many:
                rest = words[BEHIND_KEY:]
                while (
                    end < many and commands[end][BEHIND_KEY:] == rest and commands[end][0] == name
                ):
                    end += 1
            keys = keys_of(commands[at:end]) if end - at > 1 else None
            if keys is None:  # Only one command, or some of the keys are invalid.
                for one in commands[at:end]:
                    yield self.answer(session, one)
            else:
                yield self._answer_run(session, words, keys)
            at = end

    def answer(self, session: Session, words: Words) -> bytes | LaterReply:
        """The reply to one command."""
        name = words[0].upper()
        command = self._table.get(name)
        if command is None:
            session.ended = isinstance(words, TypedLine)  # No Redis client sends that.
            shown = words[0].decode("latin-1")[:60]
            return self._failed(OTHER, WireError(f"ERR unknown command '{shown}'; see COMMAND"))
        label = name.decode()
        try:
            self._require(command, session, words)
            value = command.run(session, words)
        except Exception as error:  # noqa: BLE001 - every error has a reply
            return self._failed(label, error)
        resp3 = session.resp3  # Of now: a later command may choose another protocol.
        if type(value) is tuple:  # A row of numbers; `Pending` is a tuple subclass.
            self._counts[label, "ok"] += 1
            return replies.numbers(value)
        if isinstance(value, list | str):
            self._counts[label, "ok"] += 1
            return replies.encoded(value, resp3=resp3)
        if isinstance(value, Pending | Awaitable):
            return LaterReply(value, lambda result: self._finished(label, result, resp3=resp3))
        return self._finished(label, lambda: value, resp3=resp3)

    def _finished(self, label: str, result: Callable[[], Any], *, resp3: bool) -> bytes:
        try:
            reply = replies.encoded(result(), resp3=resp3)
        except Exception as error:  # noqa: BLE001 - every error has a reply
            return self._failed(label, error)
        self._counts[label, "ok"] += 1
        return reply

    def _answer_run(self, session: Session, words: Words, keys: list[str]) -> bytes | LaterReply:
        """The replies to consecutive commands that differ only in their keys, taken in one call."""
        label = words[0].decode()
        try:
            self._require(self._table[words[0]], session, words)
            value = self._runs[words[0]](words, keys)
        except Exception as error:  # noqa: BLE001 - every error has a reply
            return b"".join([self._failed(label, error) for _ in keys])
        if isinstance(value, Pending):
            return LaterReply(value, lambda result: self._run_finished(label, result()))
        return self._run_finished(label, value)

    def _run_finished(self, label: str, rows: list[Any]) -> bytes:
        failed = sum(isinstance(one, Exception) for one in rows)
        self._counts[label, "ok"] += len(rows) - failed
        if not failed:
            return replies.rows_of_numbers(rows)
        return b"".join(
            [
                self._failed(label, one) if isinstance(one, Exception) else replies.numbers(one)
                for one in rows
            ]
        )

    def _require(self, command: RespCommand, session: Session, words: Words) -> None:
        """Refuse callers without permission, and invalid commands."""
        if command.role is not None and not session.may(command.role):
            raise session.refusal(command.role)
        if not command.fits(len(words)):
            name = words[0].decode("latin-1").lower()
            raise WireError(f"ERR wrong number of arguments for '{name}': {command.summary}")

    def _failed(self, label: str, error: Exception) -> bytes:
        """The reply to an error, which is also counted."""
        self._counts[label, "error"] += 1
        if isinstance(error, WireError):
            return replies.error(str(error))
        if isinstance(error, UsageError):
            return replies.error(f"ERR {error}")
        if isinstance(error, EngineError):
            known = "it may have been charged" if error.indefinite else "nothing was charged"
            return replies.error(f"HGUNAVAILABLE the store does not answer; {known}")
        if not isinstance(error, HeadgateError):
            self._log.error("a command failed: %s", error, exc_info=error)
        return replies.error("ERR the command failed; see the service's log")

    # Commands about the node

    def _call(self, session: Session, words: Words) -> Any:
        """`HG verb number-of-names name... argument...`."""
        if self._node.draining:
            raise WireError(DRAINING)
        verb = words[1]
        role = VERB_ROLES.get(verb)
        if role is not None and not session.may(role):
            raise session.refusal(role)
        if verb == b"reset" and len(words) >= 4:
            return self._packed_reset(session, words)
        return self._packed.call([*words[1:]])

    def _region(self, _: Session, words: Words) -> Any:
        exchange = self._node.exchange
        if exchange is None:
            raise WireError(
                "ERR this node accepts no messages from other regions; see its setting 'regions'"
            )
        return exchange.receive(words[1])

    async def _packed_reset(self, session: Session, words: Words) -> Any:
        """Every reset is recorded in the audit log."""
        _, rule, identity, key = calls.read_identity(words[3])
        before = [{"rule": rule, "limit": identity}]
        change = AuditedChange(action="key.reset", target=key, before=before)
        async with self._node.audit.change(session.caller or ANYBODY, change):
            value = await self._packed.call([*words[1:]])
        self._node.recorder.unblock(key)
        return value

    def _ping(self, _: Session, words: Words) -> Any:
        if self._node.draining:
            raise WireError(DRAINING)
        return words[1] if len(words) > 1 else "PONG"

    def _describe(self, _: Session, words: Words) -> Any:
        asked = words[1].upper() if len(words) > 1 else b"INFO"
        names = [name.upper() for name in words[2:]] or list(self._table)
        if asked == b"COUNT":
            return len(self._table)
        if asked == b"LIST":
            return [name.lower() for name in self._table]
        if asked == b"INFO":
            return [self._table[name].row(name) if name in self._table else None for name in names]
        if asked == b"DOCS":
            known = {name: self._table[name] for name in names if name in self._table}
            return {
                name.lower(): {b"summary": command.summary.encode()}
                for name, command in known.items()
            }
        raise WireError("ERR unknown subcommand; use COUNT, LIST, INFO or DOCS")

    def _info(self, _session: Session, _words: Words) -> bytes:
        settings = self._node.settings
        lines = (
            "# Server",
            f"headgate_version:{__version__}",
            f"node_id:{self._node.id}",
            f"engine:{settings.store}",
            f"draining:{int(self._node.draining)}",
            "",
        )
        return "\r\n".join(lines).encode()


def _for_peers(handler: Handler) -> RespCommand:
    """A command that the engine provides for other nodes."""
    return RespCommand(
        lambda _, words: handler([*words[1:]]),
        -2,
        "for other nodes of the engine",
        "operator",
        most=PACKED,
    )


def _auth(session: Session, words: Words) -> str:
    session.authenticate(words[1] if len(words) == 3 else b"", words[-1])
    return "OK"


def _select(_: Session, words: Words) -> str:
    if words[1] != b"0":
        raise WireError("ERR DB index is out of range: there is one database, 0")
    return "OK"


def _quit(session: Session, _words: Words) -> str:
    session.ended = True
    return "OK"


def _reset(session: Session, _words: Words) -> str:
    session.reset()
    return "RESET"
