"""Scopes: what answers calls for each namespace that callers name. Bounded; who was not asked for longest is let go.

A scope remembers how to hit each limit, and what its keys were answered. All of that can be found out again, except
while the store is away: then the scope has the only counts that there are, and is kept until the store has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...charge import require_key
from ...errors import EngineError

if TYPE_CHECKING:
    from .serving import ServedEngine

MAX_SCOPES: Final = 1_024
MAX_BOUND: Final = 16_384
"""Limits that all scopes remember how to hit; more only until the next look."""


class Scopes:
    """What answers for namespaces, on behalf of one engine."""

    def __init__(self, served: ServedEngine) -> None:
        self._served = served
        self._scoped: dict[str, ServedEngine] = {}  # Who was asked last comes last.
        self._look_at = MAX_BOUND

    def __len__(self) -> int:
        return len(self._scoped)

    def of(self, namespace: str) -> ServedEngine:
        """What answers for a namespace; nothing is the engine's own."""
        if not namespace:
            return self._served
        scoped = self._scoped.pop(namespace, None)
        if scoped is None:
            scoped = self._new(namespace)
        self._scoped[namespace] = scoped
        if self._served.ever_bound >= self._look_at:
            self._let_go(MAX_SCOPES, MAX_BOUND)
            self._look_at = self._served.ever_bound + MAX_BOUND
        return scoped

    def _new(self, namespace: str) -> ServedEngine:
        require_key(namespace)
        if len(self._scoped) >= MAX_SCOPES:
            self._let_go(MAX_SCOPES // 2, MAX_BOUND)
        if len(self._scoped) >= MAX_SCOPES:
            raise EngineError(
                f"the store does not answer, and this node already answers for {MAX_SCOPES} namespaces",
                transient=True,
            )
        return self._served.scoped(namespace)

    def _let_go(self, scopes: int, bound: int) -> None:
        """Let go of scopes that can be made anew, until so few are left, which remember so few limits."""
        limits = sum(one.bound for one in self._scoped.values())
        for namespace, scoped in list(self._scoped.items())[:-1]:
            if len(self._scoped) <= scopes and limits <= bound:
                return
            if scoped.forgettable:
                limits -= scoped.bound
                del self._scoped[namespace]
