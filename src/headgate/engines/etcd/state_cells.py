"""Cells: a state and what belongs to it as plain data, without loss.

A cell is `[state]`, `[state, line]` or `[state, line, marks]`, each of which may be null: the line of waiting requests,
and the low-water marks of open reservations. A null instead of a cell means that nothing is left.

The state file omits what only reservations need, and the time of a key without held slots. Here both must survive, so
the states of buckets are written in full, and those of slots with the latest hold.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ...algorithms import (
    ALGORITHMS,
    Adaptive,
    Calendar,
    CalendarWindow,
    Concurrency,
    TokenBucket,
)
from ...errors import UsageError
from .._line import Line
from .._watch import Watch
from .storable import why_not_storable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...algorithms import Limit, State


def require_storable(limit: Limit) -> None:
    """Refuse a limit whose state may grow beyond what etcd accepts in one piece."""
    problem = why_not_storable(limit)
    if problem is not None:
        raise UsageError(problem)


def packed_limit(limit: Limit) -> list[Any]:
    """A limit as its name and arguments."""
    if isinstance(limit, CalendarWindow):
        calendar = limit.calendar
        return ["calendar", limit.limit, calendar.period, calendar.tz, calendar.anchor]
    return [limit.name, *limit.made_of]


def unpacked_limit(data: list[Any]) -> Limit:
    """The inverse."""
    name, *numbers = data
    if name == "calendar":
        return CalendarWindow(numbers[0], Calendar(*numbers[1:]))
    kind: Any = ALGORITHMS[name]
    limit: Limit = kind(*numbers)
    return limit


def state_packer(limit: Limit) -> Callable[[State], Any]:
    """A function that turns a state of this limit into numbers and texts."""
    if isinstance(limit, TokenBucket | Adaptive):
        return _unchanged
    if isinstance(limit, Concurrency):
        return lambda state: [limit.encode(state), state.newest, state.last]
    return limit.encode


def _unchanged(state: State) -> Any:
    return state


def packed_state(limit: Limit, state: State) -> Any:
    """A state as numbers and texts; `None` if there is none."""
    return None if state is None else state_packer(limit)(state)


def unpacked_state(limit: Limit, data: Any) -> State:
    """The inverse."""
    if data is None or isinstance(limit, TokenBucket):
        return data
    if isinstance(limit, Concurrency):
        holders, newest, last = data
        return limit.decode(holders).as_of(tuple(newest), last)
    return frozen(data) if isinstance(limit, Adaptive) else limit.decode(data)


def packed_cell(limit: Limit, state: State, line: Line | None, watch: Watch | None) -> list[Any]:
    """A state and what belongs to it."""
    cell: list[Any] = [packed_state(limit, state)]
    if line is not None or watch is not None:
        cell.append(None if line is None else line.encode(partial(packed_state, limit)))
    if watch is not None:
        cell.append(watch.encode())
    return cell


def unpacked_cell(limit: Limit, cell: list[Any]) -> tuple[State, Line | None, Watch | None]:
    """The inverse."""
    state, line, watch, *_ = [*cell, None, None]
    return (
        unpacked_state(limit, state),
        None if line is None else Line.decode(line, partial(unpacked_state, limit)),
        None if watch is None else Watch.decode(watch),
    )


def frozen(data: Any) -> Any:
    """Turn JSON lists back into tuples."""
    return tuple(map(frozen, data)) if isinstance(data, list) else data
