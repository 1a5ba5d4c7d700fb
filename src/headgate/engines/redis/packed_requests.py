"""Packed requests: the plain one, which is the most frequent, and any other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ...charge import Charge, ChargeSet
from .packing import packed_bulk, unpacked_bulk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...algorithms import Limit
    from ...decision import Context
    from ..base import Hooks


class PlainTemplate:
    """The common part of all plain requests of one limit."""

    __slots__ = ("context", "hooks", "limit", "packed", "rules")

    def __init__(
        self, limit: Limit, rules: tuple[bytes], context: Context, hooks: Hooks | None
    ) -> None:
        self.limit = limit
        self.rules = rules
        self.context = context
        self.hooks = hooks
        self.packed = b"".join(map(packed_bulk, rules))


class PlainRequest(tuple[str, bytes, PlainTemplate, Any]):
    """The usual request, one unit of one limit: key, packed name, form, and the ticket for its hooks.

    A tuple, because nothing is cheaper to create: the fast path reads it by index.
    """

    __slots__ = ()

    @property
    def keys(self) -> tuple[bytes]:
        """The name of its state."""
        return (unpacked_bulk(self[1]),)

    @property
    def rules(self) -> tuple[bytes]:
        """Its packed rule."""
        return self[2].rules

    @property
    def hooks(self) -> Hooks | None:
        """The hooks that see its outcome first."""
        return self[2].hooks

    @property
    def ticket(self) -> Any:
        """The argument of its hooks."""
        return self[3]

    @property
    def request(self) -> ChargeSet:
        """The original request."""
        key, _, form, _ = self
        return ChargeSet((Charge(key, form.limit, rule=form.context.rule),))


@dataclass(slots=True)
class PackedRequest:
    """Any other request: its part of a batch, and what is needed to read its answer."""

    request: ChargeSet
    keys: tuple[bytes, ...]
    rules: tuple[bytes, ...]
    """The packed rule of each step."""
    token: str | None = None
    """The caller's name for its reservation or slots."""
    holder: str | None = None
    """The name that it holds slots under; slots of a reservation have a separate one."""
    record: bytes | None = None
    """The key of its reservation's record."""
    look: bool = False
    """Whether to only peek, without changing anything."""
    hooks: Hooks | None = None
    """The hooks that see its outcome first."""
    ticket: Any = None
    """The argument of its hooks."""

    @property
    def steps(self) -> list[tuple[Charge, Limit]]:
        """The limits of all charges, in the order of their answers."""
        return [(charge, limit) for charge in self.request.charges for limit in charge.limits]


class ReservationRecord(NamedTuple):
    """The record of a reservation, or of its part in one slot."""

    name: bytes
    charges: tuple[int, ...] = ()
    """The charges of the request that it covers, if not all."""


def template_of(parts: Sequence[PackedRequest | PlainRequest]) -> PlainTemplate | None:
    """The common form of requests that are all plain and of one limit; `None` for any others."""
    first = parts[0]
    if type(first) is not PlainRequest:
        return None
    form = first[2]
    for part in parts:
        if type(part) is not PlainRequest or part[2] is not form:
            return None
    return form
