"""Decision: what every path answers.

Building the answer can cost more than working it out, so a decision is a plain tuple underneath, the cheapest
immutable object CPython makes, and everything that can be derived is derived when it is read.
"""

from __future__ import annotations

import math
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from .algorithms.base import MAX_EXACT, NEVER, Answer, Limit

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
    rules: tuple[tuple[str, Limit, Answer, Context], ...] = ()
    """What decisions about each limit are made of; they are made when somebody asks."""
    mark: Any = None
    """Where a place in line was booked; only the engine that booked it reads this."""
    receipt: Receipt | None = None


ENGINE: Final = Context()


class NoLimit:
    """Stands where a decision has its limit, when there is none."""

    name: Final = "none"
    counts_denials: Final = False
    limit: Final = MAX_EXACT
    window_us: Final = 0
    identity: Final = "none"

    def __repr__(self) -> str:
        return "NoLimit()"


UNLIMITED: Final[tuple[Limit, Answer]] = (cast("Limit", NoLimit()), (True, MAX_EXACT, 0, 0, 0))
"""The middle of a decision that nothing limits: more could be taken than any limit can give."""


class Decision(tuple[str, Limit, Answer, Context]):
    """The answer to one request. Truthy when allowed.

    >>> from headgate import Limiter
    >>> decision = Limiter().hit("user:42", "100/minute")
    >>> bool(decision), decision.remaining, decision.algorithm
    (True, 99, 'sliding_window')
    """

    __slots__ = ()

    key: str = property(itemgetter(0))  # type: ignore[assignment]
    """Whom it is about. With several charges: the one that denied, or that has the least left."""

    _limit: Limit = property(itemgetter(1))  # type: ignore[assignment]
    _answer: Answer = property(itemgetter(2))  # type: ignore[assignment]
    _context: Context = property(itemgetter(3))  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return self[2][0]

    @property
    def allowed(self) -> bool:
        """Whether the request may go on."""
        return self[2][0]

    @property
    def limited(self) -> bool:
        """Whether any limit was asked: false when no rule is about a request, or only shadows are.

        There is nothing to count then: `limit` and `remaining` are the largest number there is (2**53 - 1), the
        algorithm is `none`, and a front door sends no numbers at all.
        """
        return self[1].name != "none"

    @property
    def limit(self) -> int:
        """Units per window (or slots) of the limit that this answer speaks of."""
        return self[1].limit

    @property
    def window(self) -> float:
        """That limit's window in seconds; 0 for slots."""
        return self[1].window_us / 1_000_000

    @property
    def burst(self) -> int:
        """Units that a key which was idle can take at once: the limit, unless a bucket holds more or less."""
        limit = self[1]
        return getattr(limit, "burst", limit.limit)

    @property
    def remaining(self) -> int:
        """Units that could still be taken now: at most `burst`, which may be more than `limit`."""
        return self[2][1]

    @property
    def retry_after(self) -> float:
        """Seconds until a retry can pass: 0 when allowed, `math.inf` when it never will."""
        retry_after_us = self[2][2]
        return math.inf if retry_after_us == NEVER else retry_after_us / 1_000_000

    @property
    def retry_after_us(self) -> int:
        """`retry_after` in microseconds, and -1 for never."""
        return self[2][2]

    @property
    def reset_after(self) -> float:
        """Seconds until the key is as if it had never been used, if nobody uses it."""
        return self[2][3] / 1_000_000

    @property
    def backoff_level(self) -> int:
        """How far an exponential backoff has tightened; 0 elsewhere."""
        return self[2][4]

    @property
    def never(self) -> bool:
        """Whether the cost is above what the limit can ever give."""
        return self[2][2] == NEVER

    @property
    def algorithm(self) -> str:
        """How the limit is counted."""
        return self[1].name

    @property
    def rule(self) -> str | None:
        """The rule that the limit belongs to, if it came from one."""
        return self[3].rule

    @property
    def source(self) -> Source:
        """Who answered: the engine, or a guard in front of it."""
        return self[3].source

    @property
    def degraded(self) -> bool:
        """Whether the answer is less exact than the limit promises."""
        return self[3].degraded

    @property
    def token(self) -> str | None:
        """The name of a reservation or of a held slot."""
        return self[3].token

    @property
    def receipt(self) -> Receipt | None:
        """Which decision of its key this is, if the engine was asked for receipts."""
        return self[3].receipt

    @property
    def rules(self) -> tuple[Decision, ...]:
        """The answer of every limit that was asked, in order: shadows too, and none if nothing was asked."""
        asked = tuple(map(Decision, self[3].rules))
        return asked or ((self,) if self.limited else ())

    def after_waiting(self) -> Decision:
        """The same answer once the wait that it asked for is over."""
        key, limit, (allowed, remaining, waited_us, reset_after_us, level), context = self
        return Decision(
            (key, limit, (allowed, remaining, 0, reset_after_us - waited_us, level), context)
        )

    def __repr__(self) -> str:
        verdict = "allowed" if self else "denied"
        if not self.limited:
            return f"<Decision {verdict}: no limit was asked>"
        detail = f"remaining={self.remaining}"
        if not self:
            detail = "never fits" if self.never else f"retry_after={self.retry_after:g}"
        return f"<Decision {verdict} {self.key!r} {self.algorithm} limit={self.limit} {detail}>"
