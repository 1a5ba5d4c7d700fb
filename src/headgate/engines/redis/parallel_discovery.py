"""Parallel discovery: when each question of a discovery is sent, without I/O.

One answer is enough, so one server is asked first. The next is asked as soon as the first has failed, or has not
answered within `PATIENCE_S`; then both answers are awaited. A silent server costs that time, not the deadline.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from .failures import Answered, NotConnected, NotSent, Silent, Unanswered, copy_for_caller
from .topology import QuestionReply

if TYPE_CHECKING:
    from .topology import Discovery, Question, Topology

PATIENCE_S: Final = 0.03
"""How long to wait for an answer before another server is asked, too."""


class ParallelDiscovery:
    """A running discovery: send all of `due()`, wait for `PATIENCE_S`, then call `process_reply` or `ask_another`."""

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery
        self._due: list[Question] = []
        self._later: deque[Question] = deque()
        self._open = 0
        self.ended = False
        self.reason: Exception | None = None
        """Why nothing was found, if that is so."""
        self._advance(None)
        self.ask_another()

    def due(self) -> list[Question]:
        """The questions to ask now; each is returned once."""
        due, self._due = self._due, []
        self._open += len(due)
        return due

    def ask_another(self) -> None:
        """No answer for a while: ask one more server."""
        if self._later:
            self._due.append(self._later.popleft())

    def process_reply(self, question: Question, reply: Any) -> None:
        """Process an answer."""
        self._open -= 1
        self._advance(QuestionReply(question, reply))
        if not self._open and not self._due:
            self.ask_another()

    def require_found(self, topology: Topology, slot: int) -> None:
        """Raise why no server was found for a slot."""
        reason = self.reason
        # That was only a question of the search; the command itself was not sent.
        if isinstance(reason, Unanswered):
            kind = NotSent if isinstance(reason, Silent) else NotConnected
            raise kind(str(reason)) from reason
        if reason is not None:
            raise copy_for_caller(reason)
        if topology.address(slot) is None:
            raise Answered(f"no server of the Cluster has the slot {slot}")

    def _advance(self, reply: QuestionReply | None) -> None:
        try:
            more = next(self._discovery) if reply is None else self._discovery.send(reply)
        except StopIteration as done:
            self.ended, self.reason = True, done.value
            return
        if reply is None:
            self._later.extend(more)
        else:  # Follow-up questions are asked at once.
            self._due += more
