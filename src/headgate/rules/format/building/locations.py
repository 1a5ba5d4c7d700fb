"""Where the fields of a mapping were written, and errors of the library at such a place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from ....errors import UsageError
from ..error_collector import INVALID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..error_collector import At, ErrorCollector

Where: TypeAlias = "Callable[[str], At]"
"""The place of a field, by its name."""

P = ParamSpec("P")
T = TypeVar("T")


def inside(at: At) -> Where:
    """Fields of the mapping at `at`."""
    return lambda name: (at, name)


def valid_items(items: Iterable[Any]) -> list[tuple[int, Any]]:
    """The valid items, each with its index in the list."""
    return [] if items is INVALID else [(i, it) for i, it in enumerate(items) if it is not INVALID]


def attempt(
    at: At, errors: ErrorCollector, make: Callable[P, T], *args: P.args, **named: P.kwargs
) -> T | None:
    """The result of `make` with these arguments, or an error at `at` with the message of its `UsageError`."""
    try:
        return make(*args, **named)
    except UsageError as error:
        add_usage_error(error, at, errors)
        return None


def add_usage_error(error: UsageError, at: At, errors: ErrorCollector) -> None:
    """Add an error at `at` with the message of this one."""
    message, _, remedy = str(error).partition("; ")
    errors.add(at, message, remedy or "choose other values")
