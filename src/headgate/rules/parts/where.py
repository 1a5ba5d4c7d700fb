"""Where the fields of a mapping were written, and what an error of the library means at such a place."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

from ...errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..faults import At, Faults

Where: TypeAlias = "Callable[[str], At]"
"""The place of a field, by its name."""

T = TypeVar("T")


def inside(at: At) -> Where:
    """Fields of the mapping at `at`."""
    return lambda name: (at, name)


def attempt(make: Callable[[], T], at: At, faults: Faults) -> T | None:
    """What `make` makes, or a fault at `at` in the words of its `UsageError`."""
    try:
        return make()
    except UsageError as error:
        message, _, remedy = str(error).partition("; ")
        faults.add(at, message, remedy or "choose other values")
        return None
