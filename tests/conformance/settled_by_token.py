"""Settling by the name that a story reserved under."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from headgate import Engine
    from headgate.charge import ChargeSet
    from headgate.decision import Decision


class SettledByToken:
    """An engine whose reservations lie where their keys do, for stories that settle by the name they reserved under.

    On Cluster and on etcd the token that the decision carries says where that is; everybody but a story settles by that
    one.
    """

    def __init__(self, engine: Engine, tokens: dict[str, str] | None = None) -> None:
        self._engine = engine
        self._tokens = {} if tokens is None else tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def scoped(self, namespace: str) -> Self:
        return type(self)(self._engine.scoped(namespace), self._tokens)

    def decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
        decisions = self._engine.decide(requests)
        for request, decision in zip(requests, decisions, strict=True):
            if request.token is not None and decision.token is not None:
                self._tokens[request.token] = decision.token
        return decisions

    def settle(self, token: str, actual: int | Sequence[int]) -> bool:
        return self._engine.settle(self._tokens.get(token, token), actual)
