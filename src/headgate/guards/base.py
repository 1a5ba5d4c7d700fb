"""The contract of a guard: pure code with three hooks around every call to an engine.

`before` may answer the request or replace it, `after` sees each answer of the engine, and `failed` each failure. A
guard does no I/O, starts no threads and never waits, so it is written once: the shells in `shell.py` run it, one around
a blocking engine and one around an async one.

Calls come in two forms, and a guard has hooks for both. A request (`ChargeSet`) may be anything. A hit, one charge of
one limit, is the fast path: `for_limit` is called once, when the limit is bound, and returns the hooks for all hits of
it. A request that amounts to a hit takes the fast path too, so `before` and `after` do not see it.

A guard that only picks one of several limits, as adaptive limiting does, returns `Variants` instead of hooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from ..algorithms import Limit
    from ..charge import ChargeSet
    from ..decision import Decision
    from ..engines.base import AsyncHit, HookedHit
    from ..engines.verbs import Verb
    from ..errors import EngineError


class Redirect(NamedTuple):
    """Hit another limit with the same key and cost."""

    limit: Limit
    rule: str | None = None


class AskInstead(NamedTuple):
    """Send this request to the engine instead of the hit."""

    request: ChargeSet
    answered: Callable[[Decision], Decision | None]
    """Turns the engine's answer to the request into the caller's; `None` to make the hit after all."""
    failed: Callable[[], None]
    """Called when there is no answer, or the caller has stopped waiting for it."""
    ticket: Any = None
    """Passed to the other hooks if the hit is made after all."""


Found: TypeAlias = "Decision | Redirect | AskInstead | Any"
"""An answer, another call, or a ticket: with a ticket the engine is called and the other hooks get the ticket."""

Chore: TypeAlias = "Callable[[Any], Verb[Any]]"
"""`(engine)`: a verb that calls the engine in the background."""


Shortcut: TypeAlias = "Callable[[Callable[[str, int], Any]], Callable[[str, int], Any]]"
"""`(hit)`: the same hit with a guard's answers in front, so that they cost no more than one call."""

QuickHit: TypeAlias = "Callable[[HookedHit, AsyncHit], AsyncHit]"
"""`(ask, hit)`: the same hit, except that one for which `before` only returns a ticket goes to `ask` with it."""

QuickHookedHit: TypeAlias = "Callable[[HookedHit, HookedHit], HookedHit]"
"""`QuickHit` inside of another layer: `ask` gets a pair of tickets, this guard's and that layer's."""


class HitGuard(NamedTuple):
    """A guard's hooks for the hits of one limit. Functions, not methods, because they run on every hit."""

    before: Callable[[str, int], Found]
    """`(key, cost)`. A guard without the other two hooks has no use for a ticket and must return `None` instead."""
    after: Callable[[Decision, Any], Decision] | None = None
    """`(decision, ticket)`"""
    failed: Callable[[Exception, Any], Decision] | None = None
    """`(error, ticket)`: returns an answer, or raises the error or a better one."""
    may_skip: Callable[[], bool] | None = None
    """Whether `after` has nothing to do at the moment for hits that are allowed; see `Hooks.may_skip`."""
    passes: Callable[[Sequence[str]], bool] | None = None
    """Whether these keys can be hit in one call, because the guard affects none of them. Without it they never can."""
    shortcut: Shortcut | None = None
    """Makes a hit of all layers from here on in one that answers by itself what this guard can answer at once.

    The shell around this one finds it with `shortcut(limit, rule)` of this guard's shell.
    """
    gives_way: bool = False
    """Whether the shortcut of the guard behind this one comes first: its answers are none of this one's business."""
    quick_hit: QuickHit | None = None
    """Makes a hit of this guard that has `before` built in, for async engines: one call less."""
    quick_hooked_hit: QuickHookedHit | None = None
    """The same for when there is a layer around this one that sees every answer."""


def cost_as_ticket(_key: str, cost: int) -> int:
    """`HitGuard.before` of a guard that only looks at answers. Shells recognise it and skip the call."""
    return cost


class Chosen(Protocol):
    """Selects one of several limits: the chooser changes `index`, and the next hit follows."""

    index: int


class Variants(NamedTuple):
    """For a limit with several variants: each variant is bound once, and every hit picks one."""

    limits: tuple[Limit, ...]
    chosen: Chosen


class Guard:
    """A guard that does nothing. Others override what they need.

    If `has_chores`, its chores run from time to time, after the first answered `AskInstead`: `chore_pause` says when,
    and `chores` what is due by then. `last_chores` run before the engine is closed.
    """

    has_chores: ClassVar[bool] = False

    limit_type: ClassVar[type[Limit] | None] = None
    """The only kind of limit that this guard handles. Requests without one skip it."""

    def scoped(self, namespace: str) -> Self:
        """The guard for another namespace. One that remembers keys must not mix namespaces."""
        return self

    def for_limit(self, limit: Limit, rule: str | None) -> HitGuard | Variants | None:
        """The hooks for hits of one limit; `None` if there are none, so that those hits cost nothing extra."""
        return None

    def before(self, request: ChargeSet) -> Decision | ChargeSet:
        """The answer, or the request to send to the engine: this one or a replacement."""
        return request

    def after(self, request: ChargeSet, decision: Decision) -> Decision:
        """The caller's answer, given the engine's answer to the request from `before`."""
        return decision

    def failed(self, request: ChargeSet, error: EngineError) -> Decision:
        """The answer when the engine has failed; raises the error if the guard has no answer either."""
        raise error

    def current_limit(self, limit: Limit, rule: str | None) -> Limit:
        """The limit that hits of this limit currently go to: one of its `Variants`, or itself."""
        return limit

    def units_returned(self, key: str) -> None:
        """Called when units of a key may have been given back."""

    def resetting(self, key: str) -> None:
        """Called before a key is reset."""

    def settling(self, token: str, actual: int | Sequence[int]) -> int | Sequence[int]:
        """The real costs for the engine, of a reservation that is being settled: `before` may have dropped charges."""
        return actual

    def closed(self, token: str) -> None:
        """Called when a reservation was certainly settled, or is not there (any more): nobody settles it again."""

    def settled(self, token: str) -> None:
        """Called after a reservation was settled, or settling was attempted: it may have given units back."""

    def chore_pause(self) -> float | None:
        """Seconds until there may be something to do; `None` if there will be nothing."""
        return None

    def chores(self) -> list[Chore]:
        """The chores that are due now."""
        return []

    def last_chores(self) -> list[Chore]:
        """The chores to run before the engine is closed."""
        return []
