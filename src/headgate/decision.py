"""Decision: the answer on every path.

Building the answer can cost more than computing it. So a decision stores its parts as it gets them, and derives
everything else when it is read. In the compiled build it is a C object, and a field that is never read is never
converted to a Python number.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from ._native import mypyc_attr
from .algorithms.base import MAX_EXACT, NEVER, Answer, Limit
from .headers import headers_by_name

Source: TypeAlias = Literal[
    "engine", "lease", "cache", "fallback", "open", "closed", "shadow", "ban"
]


class Receipt(NamedTuple):
    """Proof of when a decision was made, to verify an engine from outside."""

    version: int
    """The number of decisions on this key's state so far, including this one."""
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
    reason: str | None = None
    """Why, in words, if no number says it: the key is banned, or the path is invalid."""


ENGINE: Final = Context()


class NoLimit(Limit):
    """Takes the place of a decision's limit if there is none."""

    __slots__ = ()
    name: ClassVar[str] = "none"
    guarantee: ClassVar[str] = "nothing is limited"

    def __init__(self) -> None:
        self.limit = MAX_EXACT
        self.window_us = 0
        self.identity = self.name
        super().__init__()


NO_LIMIT: Final = NoLimit()
UNLIMITED: Final[Answer] = (True, MAX_EXACT, 0, 0, 0)
"""The answer if nothing limits a request: more remains than any limit allows."""


@mypyc_attr(acyclic=True, free_list_len=1)
class Decision:
    """The answer to one request. Truthy when allowed.

    >>> from headgate import Limiter
    >>> decision = Limiter().hit("user:42", "100/minute")
    >>> bool(decision), decision.remaining, decision.algorithm
    (True, 99, 'sliding_window')

    Engines and front ends may read its parts; everyone else uses the properties.
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
        """The key. With several charges: the one that denied, or the one with the least left."""
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
        """Whether the request may proceed."""
        return self.answer[0]

    @property
    def limited(self) -> bool:
        """Whether any limit applied: false when no rule matches a request, or only shadow rules do.

        `limit` and `remaining` are then the largest number (2**53 - 1), the algorithm is `none`, and no rate limit
        headers are sent.
        """
        return self.limited_by.name != "none"

    @property
    def limit(self) -> int:
        """Units per window (or slots) of the limit that decided."""
        return self.limited_by.limit

    @property
    def window(self) -> float:
        """That limit's window in seconds; 0 for slots."""
        return self.limited_by.window_us / 1_000_000

    @property
    def burst(self) -> int:
        """Units that an idle key allows at once: the limit, unless a bucket has another burst."""
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
        """Seconds until the key counts as unused, if it is not used until then."""
        return self.answer[3] / 1_000_000

    @property
    def backoff_level(self) -> int:
        """How far exponential backoff has tightened the limit; 0 for other algorithms."""
        return self.answer[4]

    @property
    def never(self) -> bool:
        """Whether the cost is more than the limit can ever allow."""
        return self.answer[2] == NEVER

    @property
    def algorithm(self) -> str:
        """The algorithm that decided; of an adaptive limit, the one that was chosen."""
        return self.limited_by.decider

    @property
    def rule(self) -> str | None:
        """The rule that the limit belongs to, if it came from one."""
        return self.context.rule

    @property
    def source(self) -> Source:
        """Where the answer came from: the engine, or a guard in front of it."""
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
        """Which decision of its key this is, if the engine gives receipts."""
        return self.context.receipt

    @property
    def reason(self) -> str | None:
        """Why, in words, if no number says it: a key is banned, or a path is invalid."""
        return self.context.reason

    @property
    def rules(self) -> tuple[Decision, ...]:
        """The answer of every limit that applied, in order, including shadows; empty if none applied."""
        return self.several or ((self,) if self.limited else ())

    def headers(self) -> dict[str, str]:
        """The HTTP headers that tell a client about this answer, for any framework.

        `RateLimit` and `RateLimit-Policy` as in the IETF draft, `X-RateLimit-Limit`, `-Remaining` and `-Reset` (seconds
        since 1970), and with a denial `Retry-After` in whole seconds. Empty if no limit applied.

        >>> from headgate import Limiter
        >>> headers = Limiter().hit("user:42", "100/minute").headers()
        >>> headers["RateLimit-Policy"], headers["X-RateLimit-Remaining"]
        ('"default";q=100;w=60', '99')
        """
        return headers_by_name(self)

    def after_waiting(self) -> Decision:
        """The same answer once the wait that it asked for is over."""
        allowed, remaining, waited_us, reset_after_us, level = self.answer
        answer = (allowed, remaining, 0, reset_after_us - waited_us, level)
        return Decision(self.key, self.limited_by, answer, self.context, self.several)

    def __repr__(self) -> str:
        verdict = "allowed" if self else "denied"
        if not self.limited:
            return f"<Decision {verdict}: no limit applied>"
        detail = f"remaining={self.remaining}"
        if not self:
            detail = "never fits" if self.never else f"retry_after={self.retry_after:g}"
        return f"<Decision {verdict} {self.key!r} {self.algorithm} limit={self.limit} {detail}>"
