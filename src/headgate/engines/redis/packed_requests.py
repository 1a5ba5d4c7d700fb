"""Requests on their way to Redis: the plain one, of which there are many, and any other."""

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
    """What all plain requests of one limit have in common."""

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
    """The usual request on its way, one unit of one limit: key, packed name, form, and the ticket for its hooks.

    A tuple, because nothing is cheaper to make: the fast path reads it by place.
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
        """Who sees its outcome first."""
        return self[2].hooks

    @property
    def ticket(self) -> Any:
        """What they are called with."""
        return self[3]

    @property
    def request(self) -> ChargeSet:
        """The request it stands for."""
        key, _, form, _ = self
        return ChargeSet((Charge(key, form.limit, rule=form.context.rule),))


@dataclass(slots=True)
class PackedRequest:
    """Any other request on its way: what it adds to a batch, and what is needed to read its answer."""

    request: ChargeSet
    keys: tuple[bytes, ...]
    rules: tuple[bytes, ...]
    """The packed rule of each step."""
    token: str | None = None
    """The name that a caller knows its reservation or its slots by."""
    holder: str | None = None
    """The name that it holds slots under; those of a reservation have one of their own."""
    record: bytes | None = None
    """Where its reservation is kept."""
    look: bool = False
    """Whether only to say what would be answered, and to change nothing."""
    hooks: Hooks | None = None
    """Who sees its outcome first."""
    ticket: Any = None
    """What they are called with."""

    @property
    def steps(self) -> list[tuple[Charge, Limit]]:
        """The limits of the charges, in the order of their answers."""
        return [(charge, limit) for charge in self.request.charges for limit in charge.limits]


class ReservationRecord(NamedTuple):
    """Where a reservation is kept, or what it took in one slot."""

    name: bytes
    charges: tuple[int, ...] = ()
    """Which charges of the request it is about, if not all."""


def template_of(parts: Sequence[PackedRequest | PlainRequest]) -> PlainTemplate | None:
    """The form of requests that are all plain and of one limit; `None` for any others."""
    first = parts[0]
    if type(first) is not PlainRequest:
        return None
    form = first[2]
    for part in parts:
        if type(part) is not PlainRequest or part[2] is not form:
            return None
    return form
