"""The wire format to nodes: as with Redis, except for the notes after the numbers, and the clock.

The node's clock decides, even if a test has its own clock; a calendar's period is also determined by the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...charge import MAX_KEY_BYTES
from ...errors import UsageError
from ..base import combined
from ..redis.codec import NUMBERS_PER_STEP, Codec
from ..redis.failures import unexpected_reply
from ..redis.keys import KeyCodec
from ..redis.scripts import Dialect
from .notes import read_notes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...algorithms import Answer, Limit
    from ...decision import Decision
    from ..redis.codec import Reply
    from ..redis.packed_requests import PackedRequest, PlainRequest
    from ..redis.scripts import Script, Words
    from .notes import Note

COMMAND = b"HG"
MAX_PREFIX = 4_096
"""Bytes of the beginning of a state's name: everything in front of the key. Nodes remember what it says."""


class NodeDialect(Dialect):
    """How a node is asked: by the name of the function that Redis would be told to call."""

    def words(self, script: Script) -> Words:
        """What a call of this command begins with."""
        return COMMAND, script.name.encode()


class NodeKeys(KeyCodec):
    """Names states as nodes take them: what is in front of the key must be short."""

    def state_prefix(self, limit: Limit, rule: str | None) -> bytes:
        """See `KeyCodec.state_prefix`."""
        prefix = super().state_prefix(limit, rule)
        if len(b"hg:s") + len(prefix) + len(b"=") > MAX_PREFIX:
            raise UsageError(
                f"namespace, rule and limit may have at most {MAX_PREFIX} bytes together", "rule"
            )
        return prefix


class RemoteCodec(Codec):
    """Packs requests for nodes and reads their replies, for one namespace."""

    def __init__(self, namespace: str, now_us: Callable[[], int]) -> None:
        super().__init__(
            NodeKeys(namespace, max_plain_bytes=MAX_KEY_BYTES), now_us, test_clock=False
        )

    def check(self, reply: object, steps: int) -> None:
        """Refuse what cannot be the reply of a node."""
        if type(reply) is list and len(reply) == 2 + NUMBERS_PER_STEP * steps:
            if read_notes(reply[-1], steps) is None:
                raise unexpected_reply(reply)
            reply = reply[:-1]
        super().check(reply, steps)

    def plain_answers(self, reply: Reply, count: int) -> Iterable[Answer] | None:
        """The answers to so many plain requests; `None` when they are not all as usual."""
        if _has_notes(reply):
            self.check(reply, count)
            return None
        return super().plain_answers(reply, count)

    def plain_answer(self, reply: Reply) -> Answer | None:
        """The answer to one plain request; `None` when it is not as usual."""
        if _has_notes(reply):
            self.check(reply, 1)
            return None
        return super().plain_answer(reply)

    def decision(
        self, part: PackedRequest | PlainRequest, reply: Reply, at: int
    ) -> Decision | None:
        """Read a request's share of a reply, with its notes."""
        decision = super().decision(part, reply, at)
        if decision is None or not _has_notes(reply):
            return decision
        notes = read_notes(reply[-1], len(reply) // NUMBERS_PER_STEP)
        assert notes is not None  # The reply was checked.
        first, steps = (at - 1) // NUMBERS_PER_STEP, len(part.keys)
        own = {step - first: note for step, note in notes.items() if 0 <= step - first < steps}
        return _noted(decision, own) if own else decision


def _has_notes(reply: Any) -> bool:
    return type(reply) is list and bool(reply) and type(reply[-1]) is list


def _noted(decision: Decision, notes: dict[int, Note]) -> Decision:
    parts = list(decision.several or (decision,))
    for place, note in notes.items():
        if parts[place].source != "shadow":
            parts[place] = note.applied_to(parts[place])
    context = decision.context
    token = next((note.token for note in notes.values() if note.token), context.token)
    mark = next((note.mark for note in notes.values() if note.mark is not None), context.mark)
    return combined(parts, token=token, mark=mark)
