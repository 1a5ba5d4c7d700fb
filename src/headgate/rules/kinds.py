"""Kinds of values that a field may have: texts, numbers, flags, words. `sections` has those that are made of others.

Each can do four things: check a value, recognise one at a glance, describe itself to an editor as JSON Schema, and say in
words what it is.

A check looks at shape and bounds only. Whether a text that is a text is also a rate, a path pattern or a
range of addresses is found out by whoever builds one from it. The glance is a regular expression on a value's JSON, without
spaces: what it recognises is right; what it does not may be right too, and is checked.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..algorithms.base import MAX_EXACT
from .faults import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .faults import At, Faults

QUOTE_IT: Final = "put it in quotes"
NEVER: Final = "(?!)"
"""Recognises nothing."""


class Kind(Protocol):
    """What every kind can do."""

    def check(self, value: Any, at: At, faults: Faults) -> None:
        """Note what is wrong with `value`."""

    def glance(self) -> str:
        """A regular expression that recognises values as JSON, none but sound ones."""

    def schema(self) -> dict[str, Any]:
        """The same, as JSON Schema says it."""

    def words(self) -> str:
        """The same, as a person says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text of bounded length."""

    low: int = 1
    high: int = 256
    pattern: str | None = None
    """A regular expression that means the same in Python and in JavaScript."""
    must: str = ""
    """What the pattern asks for, in words that follow "must"."""
    remedy: str = "choose another one"
    called: str = "text"
    _fits: Callable[[str], object] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fits = None if self.pattern is None else re.compile(self.pattern).fullmatch
        object.__setattr__(self, "_fits", fits)

    def check(self, value: Any, at: At, faults: Faults) -> None:
        """Refuse other types, wrong lengths, and half characters."""
        if type(value) is not str:
            remedy = QUOTE_IT if isinstance(value, int | float) else "write a text"
            faults.add(at, f"must be a text, not {shown(value)}", remedy)
        elif not self.low <= len(value) <= self.high:
            what = "must not be empty" if not value else f"has {len(value)} characters"
            faults.add(at, what, f"write {self.low} to {self.high} characters")
        elif not value.isascii() and not is_whole_text(value):
            faults.add(at, f"{shown(value)} has half a character in it", "write it out as UTF-8")
        elif self._fits is not None and not self._fits(value):
            faults.add(at, f"{shown(value)} must {self.must}", self.remedy)

    def glance(self) -> str:
        """Letters of ASCII that JSON writes as they are."""
        length = rf'[^"\\]{{{self.low},{self.high}}}+"'
        return f'"{length}' if self.pattern is None else f'"(?={length})(?:{self.pattern})"'

    def schema(self) -> dict[str, Any]:
        """A string."""
        pattern = {} if self.pattern is None else {"pattern": f"^(?:{self.pattern})$"}
        low = {"minLength": self.low} if self.low else {}
        return {"type": "string", **low, "maxLength": self.high, **pattern}

    def words(self) -> str:
        """Its name."""
        return self.called


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number within bounds; `true` is none, and neither is `1.0`."""

    low: int
    high: int

    def check(self, value: Any, at: At, faults: Faults) -> None:
        """Refuse what is none, or out of bounds."""
        if type(value) is not int:
            faults.add(at, f"must be a whole number, not {shown(value)}", _number_remedy(value))
        elif not self.low <= value <= self.high:
            between = (
                f"a number from {self.low} to {self.high}" if self.low < self.high else self.low
            )
            faults.add(at, f"{value} is out of bounds", f"write {between}")

    def glance(self) -> str:
        """Numbers that are not negative, and have fewer digits than the highest."""
        return _fewer_digits(self.low, self.high)

    def schema(self) -> dict[str, Any]:
        """An integer."""
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    def words(self) -> str:
        """Its bounds, where a reader would ask for them."""
        if self.low == self.high:
            return f"`{self.low}`"
        return f"whole number from {self.low}" + (
            f" to {self.high}" if self.high < MAX_EXACT else ""
        )


@dataclass(frozen=True, slots=True)
class Number:
    """A number within bounds, with or without a fraction."""

    low: float
    high: float

    def check(self, value: Any, at: At, faults: Faults) -> None:
        """Refuse what is none, or out of bounds."""
        if type(value) not in (int, float):
            faults.add(at, f"must be a number, not {shown(value)}", _number_remedy(value))
        elif not self.low <= value <= self.high:
            between = f"write a number from {self.low} to {self.high}"
            faults.add(at, f"{value} is out of bounds", between)

    def glance(self) -> str:
        """Whole numbers with fewer digits than the highest."""
        return _fewer_digits(self.low, self.high)

    def schema(self) -> dict[str, Any]:
        """A number."""
        return {"type": "number", "minimum": self.low, "maximum": self.high}

    def words(self) -> str:
        """Its bounds."""
        return f"number from {self.low} to {self.high}"


class Flag:
    """True or false."""

    def check(self, value: Any, at: At, faults: Faults) -> None:
        """Refuse anything else; `yes` and `no` are texts."""
        if type(value) is not bool:
            faults.add(at, f"must be true or false, not {shown(value)}", "write true or false")

    def glance(self) -> str:
        """Both of its values."""
        return "(?:true|false)"

    def schema(self) -> dict[str, Any]:
        """A boolean."""
        return {"type": "boolean"}

    def words(self) -> str:
        """Both of its values."""
        return "`true` or `false`"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    values: Mapping[str, str]
    """Each with what it means."""
    also: Mapping[str, str] = field(default_factory=dict)
    """Other names for some of them."""
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Words that one could expect here, with the reason why not, and the remedy."""

    def check(self, value: Any, at: At, faults: Faults) -> None:
        """Refuse every other word, and name the nearest."""
        if type(value) is str and (value in self.values or value in self.also):
            return
        if type(value) is str and value in self.refused:
            faults.add(at, *self.refused[value])
        else:
            names = ", ".join(self.values)
            faults.add(
                at,
                f"{shown(value)} is not known here",
                nearest(value, self.values) or f"write one of {names}",
            )

    def glance(self) -> str:
        """All of them."""
        return f'"(?:{"|".join(map(re.escape, (*self.values, *self.also)))})"'

    def schema(self) -> dict[str, Any]:
        """An enumeration."""
        return {"enum": [*self.values, *self.also]}

    def words(self) -> str:
        """All of them."""
        return ", ".join(f"`{value}`" for value in self.values)


class Anything:
    """What somebody else reads."""

    def check(self, value: Any, at: At, faults: Faults) -> None:
        """Nothing to say."""

    def glance(self) -> str:
        """It would take more than a glance."""
        return NEVER

    def schema(self) -> dict[str, Any]:
        """No demand."""
        return {}

    def words(self) -> str:
        """No word."""
        return "anything"


def is_whole_text(text: str) -> bool:
    """Whether a text can be written down: JSON's escapes can make half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fewer_digits(low: float, high: float) -> str:
    digits = len(str(int(high))) - 1
    if low > 1 or not digits:
        return NEVER
    return f"(?:{'' if low > 0 else '0|'}[1-9][0-9]{{0,{digits - 1}}}+)"


def _number_remedy(value: object) -> str:
    is_quoted = isinstance(value, str) and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value)
    return "leave out the quotes" if is_quoted else "write a number"


def nearest(value: object, names: Iterable[str]) -> str:
    """What somebody who wrote `value` may have meant, as a remedy; empty when nothing is near."""
    near = difflib.get_close_matches(str(value)[:64], names, n=1)
    return f"did you mean {near[0]!r}?" if near else ""
