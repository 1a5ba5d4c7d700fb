"""Where the fields of a mapping were written, and what an error of the library means at such a place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from ...errors import UsageError
from ..faults import WRONG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..faults import At, Faults

Where: TypeAlias = "Callable[[str], At]"
"""The place of a field, by its name."""

P = ParamSpec("P")
T = TypeVar("T")


def inside(at: At) -> Where:
    """Fields of the mapping at `at`."""
    return lambda name: (at, name)


def numbered(items: Iterable[Any]) -> list[tuple[int, Any]]:
    """The items that are sound, each with its place in the list."""
    return [] if items is WRONG else [(i, it) for i, it in enumerate(items) if it is not WRONG]


def attempt(
    at: At, faults: Faults, make: Callable[P, T], *args: P.args, **named: P.kwargs
) -> T | None:
    """What `make` makes of these arguments, or a fault at `at` in the words of its `UsageError`."""
    try:
        return make(*args, **named)
    except UsageError as error:
        note(error, at, faults)
        return None


def note(error: UsageError, at: At, faults: Faults) -> None:
    """A fault at `at` in the words of this error."""
    message, _, remedy = str(error).partition("; ")
    faults.add(at, message, remedy or "choose other values")
