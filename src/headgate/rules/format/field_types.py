"""Types of fields with a single value: text, numbers, booleans, choices. `composite_types` has the others.

Each type can do three things: check a value, describe itself as JSON Schema, and describe itself in words.

A check looks at type and bounds only. Whether a string is a valid rate, path pattern or address range is checked when
one is built from it (`building`).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from ...algorithms.base import MAX_EXACT
from .error_collector import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .error_collector import At, ErrorCollector

QUOTE_IT: Final = "put it in quotes"


class FieldType(Protocol):
    """What every type can do."""

    def check(self, value: Any, at: At, errors: ErrorCollector) -> None:
        """Add an error if `value` is wrong."""

    def schema(self) -> dict[str, Any]:
        """The type in JSON Schema."""

    def words(self) -> str:
        """The type in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextType:
    """A string of bounded length."""

    low: int = 1
    high: int = 256
    pattern: str | None = None
    """A regular expression that means the same in Python and in JavaScript."""
    must: str = ""
    """The pattern's requirement, in words that follow "must"."""
    remedy: str = "choose another one"
    number_remedy: str = QUOTE_IT
    """What to do about a number instead of a string."""
    called: str = "text"
    _fits: Callable[[str], object] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fits = None if self.pattern is None else re.compile(self.pattern).fullmatch
        object.__setattr__(self, "_fits", fits)

    def check(self, value: Any, at: At, errors: ErrorCollector) -> None:
        """Refuse other types, wrong lengths, and lone surrogates."""
        if type(value) is not str:
            is_number = isinstance(value, int | float)
            remedy = self.number_remedy if is_number else "write a string"
            errors.add(at, f"must be a string, not {shown(value)}", remedy)
        elif not self.low <= len(value) <= self.high:
            what = "must not be empty" if not value else f"has {len(value)} characters"
            errors.add(at, what, f"write {self.low} to {self.high} characters")
        elif not value.isascii() and not is_whole_text(value):
            errors.add(at, f"{shown(value)} has half a surrogate pair", "write it out as UTF-8")
        elif self._fits is not None and not self._fits(value):
            errors.add(at, f"{shown(value)} must {self.must}", self.remedy)

    def schema(self) -> dict[str, Any]:
        """A string."""
        pattern = {} if self.pattern is None else {"pattern": f"^(?:{self.pattern})$"}
        low = {"minLength": self.low} if self.low else {}
        return {"type": "string", **low, "maxLength": self.high, **pattern}

    def words(self) -> str:
        """Its name."""
        return self.called


@dataclass(frozen=True, slots=True)
class IntegerType:
    """An integer within bounds; `true` is not one, and neither is `1.0`."""

    low: int
    high: int

    def check(self, value: Any, at: At, errors: ErrorCollector) -> None:
        """Refuse other types, and numbers out of bounds."""
        if type(value) is not int:
            errors.add(at, f"must be a whole number, not {shown(value)}", _number_remedy(value))
        elif not self.low <= value <= self.high:
            between = (
                f"a number from {self.low} to {self.high}" if self.low < self.high else self.low
            )
            errors.add(at, f"{value} is out of bounds", f"write {between}")

    def schema(self) -> dict[str, Any]:
        """An integer."""
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    def words(self) -> str:
        """Its bounds, where a reader needs them."""
        if self.low == self.high:
            return f"`{self.low}`"
        return f"whole number from {self.low}" + (
            f" to {self.high}" if self.high < MAX_EXACT else ""
        )


@dataclass(frozen=True, slots=True)
class NumberType:
    """A number within bounds, integer or not."""

    low: float
    high: float

    def check(self, value: Any, at: At, errors: ErrorCollector) -> None:
        """Refuse other types, and numbers out of bounds."""
        if type(value) not in (int, float):
            errors.add(at, f"must be a number, not {shown(value)}", _number_remedy(value))
        elif not self.low <= value <= self.high:
            between = f"write a number from {self.low} to {self.high}"
            errors.add(at, f"{value} is out of bounds", between)

    def schema(self) -> dict[str, Any]:
        """A number."""
        return {"type": "number", "minimum": self.low, "maximum": self.high}

    def words(self) -> str:
        """Its bounds."""
        return f"number from {self.low} to {self.high}"


class BooleanType:
    """True or false."""

    def check(self, value: Any, at: At, errors: ErrorCollector) -> None:
        """Refuse anything else; `yes` and `no` are strings."""
        if type(value) is not bool:
            errors.add(at, f"must be true or false, not {shown(value)}", "write true or false")

    def schema(self) -> dict[str, Any]:
        """A boolean."""
        return {"type": "boolean"}

    def words(self) -> str:
        """Both values."""
        return "`true` or `false`"


@dataclass(frozen=True, slots=True)
class RefusedWord:
    """Why a word is not available, and what to do instead."""

    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class ChoiceType:
    """One of a fixed set of words."""

    values: Mapping[str, str]
    """Each word with its meaning."""
    also: Mapping[str, str] = field(default_factory=dict)
    """Aliases of some of them."""
    refused: Mapping[str, RefusedWord] = field(default_factory=dict)
    """Words that one might expect here."""

    def check(self, value: Any, at: At, errors: ErrorCollector) -> None:
        """Refuse any other word, and suggest the nearest."""
        if type(value) is str and (value in self.values or value in self.also):
            return
        if type(value) is str and value in self.refused:
            word = self.refused[value]
            errors.add(at, word.reason, word.remedy)
        else:
            names = ", ".join(self.values)
            errors.add(
                at,
                f"{shown(value)} is not a valid value",
                nearest(value, self.values) or f"write one of {names}",
            )

    def schema(self) -> dict[str, Any]:
        """An enumeration."""
        return {"enum": [*self.values, *self.also]}

    def words(self) -> str:
        """All of them."""
        return ", ".join(f"`{value}`" for value in self.values)


class AnyType:
    """Any value; interpreted elsewhere."""

    def check(self, value: Any, at: At, errors: ErrorCollector) -> None:
        """Accept anything."""

    def schema(self) -> dict[str, Any]:
        """No constraints."""
        return {}

    def words(self) -> str:
        """No description."""
        return "anything"


def is_whole_text(text: str) -> bool:
    """Whether a string can be encoded: JSON escapes can produce lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number_remedy(value: object) -> str:
    is_quoted = isinstance(value, str) and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value)
    return "leave out the quotes" if is_quoted else "write a number"


def nearest(value: object, names: Iterable[str]) -> str:
    """A suggestion for what the writer of `value` may have meant; empty if nothing is close."""
    near = difflib.get_close_matches(str(value)[:64], names, n=1)
    return f"did you mean {near[0]!r}?" if near else ""
