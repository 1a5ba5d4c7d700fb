"""Per-key settings: a ban denies without calling the engine, and a key's own limit replaces the given one.

A ban applies to everything that takes units, with or without a rule. A key's own limit replaces the limit of checks; an
override with a rule replaces all limits of that rule. Slots keep their limits. Peeks and shadows deny nothing, so bans
do not apply to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..algorithms import NEVER, Concurrency
from ..charge import ReadyCharge, require_key
from ..charge_kind import ChargeKind
from ..decision import Context, Decision
from .base import Found, Guard, HitGuard, Redirect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..algorithms import Limit
    from ..charge import Charge, ChargeSet


class KeyBan(Protocol):
    """A banned key."""

    @property
    def until_us(self) -> int | None:
        """When it ends, in microseconds since 1970; `None` for never."""

    @property
    def reason(self) -> str:
        """The reason that was given for it."""


class KeySettingsView(Protocol):
    """The current settings. Immutable: a change replaces the view."""

    @property
    def bans(self) -> Mapping[str, KeyBan]:
        """Banned keys."""

    @property
    def limits(self) -> Mapping[str, Limit]:
        """Limits of single keys, for requests without a rule."""

    @property
    def rule_limits(self) -> Mapping[str, Mapping[str, Limit]]:
        """Limits of single keys, by the rule whose limits they replace."""


class KeySettingsBoard(Protocol):
    """Where the settings are stored; `headgate.board.Board` is one."""

    @property
    def view(self) -> KeySettingsView:
        """The current settings; read on every hit, so without I/O."""

    def now_us(self) -> int:
        """The current time on the clock by which bans end."""


class KeySettingsGuard(Guard):
    """Applies per-key settings to every request.

    `board` returns the board to use; it is called when a limit is first used.
    """

    def __init__(self, board: Callable[[], KeySettingsBoard]) -> None:
        self._board = board

    def for_limit(self, limit: Limit, rule: str | None) -> HitGuard:
        """See `Guard.for_limit`."""
        board = self._board()
        keeps_limit = isinstance(limit, Concurrency)

        def before(key: str, _cost: int) -> Found:
            view = board.view
            limits = view.limits if rule is None else view.rule_limits.get(rule)
            if not (view.bans or limits):
                return None
            require_key(key)
            denied = self._denied(key, limit)
            if denied is not None:
                return denied
            own = None if keeps_limit or limits is None else limits.get(key)
            return None if own is None else Redirect(own, rule)

        def passes(keys: Sequence[str]) -> bool:
            view = board.view
            limits = view.limits if rule is None else view.rule_limits.get(rule)
            return all(not some or some.keys().isdisjoint(keys) for some in (view.bans, limits))

        return HitGuard(before, passes=passes)

    def before(self, request: ChargeSet) -> Decision | ChargeSet:
        """See `Guard.before`."""
        view = self._board().view
        if view.bans:
            for charge in request.charges:
                if charge.kind is ChargeKind.TAKE:
                    denied = self._denied(charge.key, charge.limits[0])
                    if denied is not None:
                        return denied
        if not (view.limits or view.rule_limits):
            return request
        charges = tuple(_with_own_limit(charge, view) for charge in request.charges)
        return request._replace(charges=charges)

    def _denied(self, key: str, limit: Limit) -> Decision | None:
        """The answer for a banned key; `None` if it is not banned, or the ban has ended."""
        board = self._board()
        ban = board.view.bans.get(key)
        if ban is None:
            return None
        left_us = NEVER
        if ban.until_us is not None:
            left_us = ban.until_us - board.now_us()
            if left_us <= 0:
                return None
        context = Context("ban", reason=ban.reason)
        return Decision(key, limit, (False, 0, left_us, max(0, left_us), 0), context)


def _with_own_limit(charge: Charge, view: KeySettingsView) -> Charge:
    limits = view.limits if charge.rule is None else view.rule_limits.get(charge.rule)
    own = None if limits is None else limits.get(charge.key)
    if own is None or any(isinstance(limit, Concurrency) for limit in charge.limits):
        return charge
    return ReadyCharge(charge.key, (own,), charge.cost, charge.kind, charge.rule)
