"""Decision: what every path answers.

Building the answer can cost more than working it out, so a decision keeps what it is made of as it finds it, and everything that can be
derived is derived when it is read. In the compiled build it is an object in C, and an answer that nobody reads is never turned into Python's numbers.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from .algorithms.base import MAX_EXACT, NEVER, Answer, Limit
from .native import mypyc_attr

Source: TypeAlias = Literal[
    "engine", "lease", "cache", "fallback", "open", "closed", "shadow", "ban"
]


class Receipt(NamedTuple):
    """Proof of when a decision was made, for those who check an engine from outside."""

    version: int
    """How many decisions the state of this key and limit had made by then, with this one."""
    now_us: int
    """The engine's clock."""
    epoch: str = ""
    """Versions of different epochs cannot be compared."""


class Context(NamedTuple):
    """The parts of a decision that are the same for most of them."""

    source: Source = "engine"
    degraded: bool = False
    rule: str | None = None
    token: str | None = None
    mark: Any = None
    """Where a place in line was booked; only the engine that booked it reads this."""
    receipt: Receipt | None = None


ENGINE: Final = Context()


class NoLimit(Limit):
    """Stands where a decision has its limit, when there is none."""

    __slots__ = ()
    name: ClassVar[str] = "none"

    def __init__(self) -> None:
        self.limit = MAX_EXACT
        self.window_us = 0
        self.identity = self.name
        super().__init__()


NO_LIMIT: Final = NoLimit()
UNLIMITED: Final[Answer] = (True, MAX_EXACT, 0, 0, 0)
"""What nothing limits is answered: more could be taken than any limit can give."""


@mypyc_attr(acyclic=True, free_list_len=1)
class Decision:
    """The answer to one request. Truthy when allowed.

    >>> from headgate import Limiter
    >>> decision = Limiter().hit("user:42", "100/minute")
    >>> bool(decision), decision.remaining, decision.algorithm
    (True, 99, 'sliding_window')

    Engines and front doors may look at what it is made of; everybody else finds what they need under a name of its own.
    """

    __slots__ = ("answer", "context", "key", "limited_by", "several")

    def __init__(
        self,
        key: str,
        limited_by: Limit,
        answer: Answer,
        context: Context = ENGINE,
        several: tuple[Decision, ...] = (),
    ) -> None:
        self.key = key
        """Whom it is about. With several charges: the one that denied, or that has the least left."""
        self.limited_by = limited_by
        self.answer = answer
        self.context = context
        self.several = several  # Where several limits were asked: the answer of each, in order.

    def __bool__(self) -> bool:
        return self.answer[0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Decision):
            return NotImplemented
        return self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self.__reduce__())

    def __reduce__(self) -> tuple[object, ...]:
        made_of = (self.key, self.limited_by, self.answer, self.context, self.several)
        return Decision, made_of

    @property
    def allowed(self) -> bool:
        """Whether the request may go on."""
        return self.answer[0]

    @property
    def limited(self) -> bool:
        """Whether any limit was asked: false when no rule is about a request, or only shadows are.

        There is nothing to count then: `limit` and `remaining` are the largest number there is (2**53 - 1), the
        algorithm is `none`, and a front door sends no numbers at all.
        """
        return self.limited_by.name != "none"

    @property
    def limit(self) -> int:
        """Units per window (or slots) of the limit that this answer speaks of."""
        return self.limited_by.limit

    @property
    def window(self) -> float:
        """That limit's window in seconds; 0 for slots."""
        return self.limited_by.window_us / 1_000_000

    @property
    def burst(self) -> int:
        """Units that a key which was idle can take at once: the limit, unless a bucket holds more or less."""
        limit = self.limited_by
        return getattr(limit, "burst", limit.limit)

    @property
    def remaining(self) -> int:
        """Units that could still be taken now: at most `burst`, which may be more than `limit`."""
        return self.answer[1]

    @property
    def retry_after(self) -> float:
        """Seconds until a retry can pass: 0 when allowed, `math.inf` when it never will."""
        retry_after_us = self.answer[2]
        return math.inf if retry_after_us == NEVER else retry_after_us / 1_000_000

    @property
    def retry_after_us(self) -> int:
        """`retry_after` in microseconds, and -1 for never."""
        return self.answer[2]

    @property
    def reset_after(self) -> float:
        """Seconds until the key is as if it had never been used, if nobody uses it."""
        return self.answer[3] / 1_000_000

    @property
    def backoff_level(self) -> int:
        """How far an exponential backoff has tightened; 0 elsewhere."""
        return self.answer[4]

    @property
    def never(self) -> bool:
        """Whether the cost is above what the limit can ever give."""
        return self.answer[2] == NEVER

    @property
    def algorithm(self) -> str:
        """How the limit is counted."""
        return self.limited_by.name

    @property
    def rule(self) -> str | None:
        """The rule that the limit belongs to, if it came from one."""
        return self.context.rule

    @property
    def source(self) -> Source:
        """Who answered: the engine, or a guard in front of it."""
        return self.context.source

    @property
    def degraded(self) -> bool:
        """Whether the answer is less exact than the limit promises."""
        return self.context.degraded

    @property
    def token(self) -> str | None:
        """The name of a reservation or of a held slot."""
        return self.context.token

    @property
    def receipt(self) -> Receipt | None:
        """Which decision of its key this is, if the engine was asked for receipts."""
        return self.context.receipt

    @property
    def rules(self) -> tuple[Decision, ...]:
        """The answer of every limit that was asked, in order: shadows too, and none if nothing was asked."""
        return self.several or ((self,) if self.limited else ())

    def after_waiting(self) -> Decision:
        """The same answer once the wait that it asked for is over."""
        allowed, remaining, waited_us, reset_after_us, level = self.answer
        answer = (allowed, remaining, 0, reset_after_us - waited_us, level)
        return Decision(self.key, self.limited_by, answer, self.context, self.several)

    def __repr__(self) -> str:
        verdict = "allowed" if self else "denied"
        if not self.limited:
            return f"<Decision {verdict}: no limit was asked>"
        detail = f"remaining={self.remaining}"
        if not self:
            detail = "never fits" if self.never else f"retry_after={self.retry_after:g}"
        return f"<Decision {verdict} {self.key!r} {self.algorithm} limit={self.limit} {detail}>"
