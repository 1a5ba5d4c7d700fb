"""Recovery: how a node finds out that its store is back, and charges it for what was admitted meanwhile.

A generator without I/O: it yields the next action and is sent the outcome. `fallback_shell.py` runs it in a background
thread or task: no caller waits for a probe.

The store is charged before the breaker closes, so that it does not admit again what was admitted without it; what is
admitted meanwhile is charged right after. If that takes longer than a second, the breaker closes anyway.

**A partial failure.** If the breaker is closed but charges still fail, a part of the store is down. Then they are made
one by one, so that successful ones are not repeated together with failed ones.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ..algorithms import FixedWindow
from ..charge import ChargeSet, ReadyCharge
from ..charge_kind import ChargeKind
from ..errors import EngineError, UsageError

if TYPE_CHECKING:
    from ..clock import Clock
    from .breaker import Breaker
    from .local_counts import LocalCounts

PROBE_LIMIT: Final = FixedWindow(1, 1_000_000)
PROBE_S: Final = 0.25
"""How long a probe may take to connect: the server it was sent to may be gone and replaced by another."""
MERGED_AT_ONCE: Final = 128
LONGEST_MERGE_NS: Final = 1_000_000_000


class ProbePause(NamedTuple):
    """Wait this long."""

    seconds: float


class EngineCall(NamedTuple):
    """Call this verb of the engine and send back its result; an `EngineError` is thrown in."""

    verb: str
    args: tuple[Any, ...]
    within_s: float | None = None
    """The time limit, if shorter than the engine's own."""


RecoveryStep: TypeAlias = ProbePause | EngineCall
Recovery: TypeAlias = Generator[RecoveryStep, Any, None]


def recover(breaker: Breaker, local: LocalCounts, clock: Clock) -> Recovery:
    """Run until the store answers and has been charged for everything."""
    probes = count()  # Each probes another key: only one part of a store may be down.
    at_once = MERGED_AT_ONCE
    while breaker.is_open or local.has_debts:
        yield ProbePause(breaker.pause_s())
        # Read once: the breaker may open during the merge, and then no probe has succeeded yet.
        was_open = breaker.is_open
        if was_open and not breaker.probed(good=(yield from _probe(next(probes)))):
            continue
        merged = yield from _merge(breaker, local, clock, clock.ticks() + LONGEST_MERGE_NS, at_once)
        at_once = MERGED_AT_ONCE if merged else 1
        if not merged:
            breaker.probed(good=False)
        elif was_open:
            breaker.close()
            yield from _move_slots(local)
    local.end_outage()


def _probe(number: int) -> Generator[RecoveryStep, Any, bool]:
    """Whether the store accepts a write within the deadline of a decision (a full store can still be read).

    Connecting, with TLS, may take longer than that. So after a failure it reads with more time, and then writes again.
    """
    key = f"headgate:probe:{number}"
    charge = ReadyCharge(key, (PROBE_LIMIT,), 1, ChargeKind.TAKE, None)
    written = EngineCall("decide", ([ChargeSet((charge,))],))
    with suppress(EngineError):
        yield written
        return True
    try:
        yield EngineCall("usage", (key, PROBE_LIMIT), PROBE_S)
        yield written
    except EngineError:
        return False
    return True


def _merge(
    breaker: Breaker, local: LocalCounts, clock: Clock, ends_ns: int, at_once: int
) -> Generator[RecoveryStep, Any, bool]:
    """Charge what is owed, as far as time allows; false if the store failed."""
    failed: list[ChargeSet] = []
    all_sent = True
    for one in local.waiting():
        try:
            with suppress(UsageError):  # Nothing to charge.
                yield EngineCall(one.verb, one.args)
        except EngineError:
            if breaker.is_open:
                return False
            local.defer(one.verb, *one.args)
            all_sent = False
    try:
        while charges := local.next_debts(at_once):
            try:
                local.note_merged((yield EngineCall("decide", (charges,))))
            except UsageError:  # The store will never accept them.
                local.unmerged += len(charges)
            except EngineError:  # It may have been applied: rather charge twice than never.
                failed += charges
                if at_once > 1 or breaker.is_open:
                    break
            except BaseException:  # The recovery ends here, and the next one goes on with these.
                failed += charges
                raise
            if clock.ticks() >= ends_ns:
                break
    finally:
        local.restore_debts(failed)
    return all_sent and not failed


def _move_slots(local: LocalCounts) -> Recovery:
    for token, request in local.slots():
        if not local.moving(token):
            continue
        taken = None
        try:
            (decision,) = yield EngineCall("decide", ([request],))
            taken = bool(decision)
        except EngineError:  # The store may have taken it all the same: a release goes there, too.
            return
        finally:
            if not local.moved(token, taken=taken):
                for charge in request.charges:
                    local.defer("release", charge.key, charge.limits[0], token, charge.rule)
