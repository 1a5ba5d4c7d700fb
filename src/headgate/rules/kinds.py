"""Kinds of values that a field may have.

Each can do three things: check a value, describe itself to an editor as JSON Schema, and say in words what it is.

A check looks at shape and bounds only. Whether a text that is a text is also a rate, a path pattern or a
range of addresses is found out by whoever builds one from it.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..algorithms.base import MAX_EXACT
from .faults import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .faults import At, Faults

QUOTE_IT: Final = "put it in quotes"
NO_FIELDS: Final[frozenset[str]] = frozenset()


class Kind(Protocol):
    """What every kind can do."""

    def check(self, value: Any, at: At, faults: Faults) -> None:
        """Note what is wrong with `value`."""

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
    _fits: Callable[[str], object] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fits = (lambda _: True) if self.pattern is None else re.compile(self.pattern).fullmatch
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
        elif not self._fits(value):
            faults.add(at, f"{shown(value)} must {self.must}", self.remedy)

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

    def schema(self) -> dict[str, Any]:
        """An enumeration."""
        return {"enum": [*self.values, *self.also]}

    def words(self) -> str:
        """All of them."""
        return ", ".join(f"`{value}`" for value in self.values)


@dataclass(frozen=True, slots=True)
class Each:
    """A list, every item of one kind."""

    kind: Kind
    low: int = 0
    high: int = 1_000

    def check(self, value: Any, at: At, faults: Faults) -> None:
        """Check every item."""
        if type(value) is not list:
            faults.add(at, f"must be a list, not {shown(value)}", "write a list")
        elif not self.low <= len(value) <= self.high:
            faults.add(at, f"has {len(value)} entries", f"write {self.low} to {self.high}")
        else:
            for i, item in enumerate(value):
                self.kind.check(item, (at, i), faults)

    def schema(self) -> dict[str, Any]:
        """An array."""
        low = {"minItems": self.low} if self.low else {}
        return {"type": "array", "items": self.kind.schema(), **low, "maxItems": self.high}

    def words(self) -> str:
        """A list of what."""
        return f"list of {self.kind.words()}"


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping whose keys are the writer's own."""

    key: Text
    kind: Kind
    high: int = 1_000

    def check(self, value: Any, at: At, faults: Faults) -> None:
        """Check every key and every value."""
        if type(value) is not dict:
            faults.add(at, f"must be a mapping, not {shown(value)}", "write `name: value` pairs")
        elif len(value) > self.high:
            faults.add(at, f"has {len(value)} entries", f"write at most {self.high}")
        else:
            for key, item in value.items():
                self.key.check(key, (at, key), faults)
                self.kind.check(item, (at, key), faults)

    def schema(self) -> dict[str, Any]:
        """An object with any properties."""
        return {
            "type": "object",
            "propertyNames": self.key.schema(),
            "additionalProperties": self.kind.schema(),
            "maxProperties": self.high,
        }

    def words(self) -> str:
        """A mapping from what to what."""
        return f"mapping from {self.key.words()} to {self.kind.words()}"


class Shapes:
    """One of several kinds, told apart by the type of the value: a text, a number, a flag, a list or a mapping."""

    def __init__(self, **kinds: Kind) -> None:
        self._kinds = kinds
        self._by_type: dict[type, Kind] = {
            kind_type: kind for shape, kind in kinds.items() for kind_type in _TYPES[shape]
        }

    def check(self, value: Any, at: At, faults: Faults) -> None:
        """Check it as the kind that its type says it is."""
        kind = self._by_type.get(type(value))
        if kind is None:
            faults.add(
                at, f"must be {self._shapes()}, not {shown(value)}", f"write {self._shapes()}"
            )
        else:
            kind.check(value, at, faults)

    def schema(self) -> dict[str, Any]:
        """Any of them."""
        return {"anyOf": [kind.schema() for kind in self._kinds.values()]}

    def words(self) -> str:
        """All of them."""
        text, several = self._kinds.get("text"), self._kinds.get("list")
        if isinstance(several, Each) and several.kind is text and len(self._kinds) == 2:
            return f"{text.words()}, one or several"
        return ", or ".join(kind.words() for kind in self._kinds.values())

    def _shapes(self) -> str:
        *most, last = (_ARTICLES[shape] for shape in self._kinds)
        return f"{', '.join(most)} or {last}"


def one_or_more(kind: Kind, high: int = 1_000, *, low: int = 0) -> Shapes:
    """One text, or a list of them."""
    return Shapes(text=kind, list=Each(kind, low, high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One line of the table: everything that anybody has to know about one field."""

    name: str
    kind: Kind
    about: str
    """One sentence, in Markdown."""
    example: Any
    default: str = ""
    """What holds where the field is left out, in words."""
    aliases: tuple[str, ...] = ()
    required: bool = False


class Section:
    """A mapping whose keys are known: a table of fields.

    `complete` is false for one that something else may complete, as a file's defaults do with a rule: what is required is
    then not asked for.
    """

    def __init__(self, name: str, fields: Sequence[Field], *, complete: bool = True) -> None:
        self.name = name
        self.fields = tuple(fields)
        self.required = {one.name: one for one in self.fields if one.required}
        self.complete = complete
        self.by_name = {name: one for one in self.fields for name in (one.name, *one.aliases)}
        self._with_aliases = [one for one in self.fields if one.aliases]

    def check(self, value: Any, at: At, faults: Faults) -> None:
        """Check every field; what is null counts as left out."""
        if type(value) is dict:
            self.check_fields(value, at, faults)
        else:
            names = ", ".join(one.name for one in self.fields[:3])
            message = f"must be a mapping, not {shown(value)}"
            faults.add(at, message, f"write its fields, such as {names}")

    def check_fields(self, value: Mapping[str, Any], at: At, faults: Faults) -> frozenset[str]:
        """The same for what is known to be a mapping; tells which fields something is wrong with."""
        before = faults.count
        bad = NO_FIELDS
        for key, item in value.items():
            one = self.by_name.get(key)
            if one is None:
                names = ", ".join(one.name for one in self.fields)
                remedy = nearest(key, self.by_name) or f"there are {names}"
                faults.add((at, key), f"there is no field {shown(key)} here", remedy)
            elif item is not None:
                one.kind.check(item, (at, key), faults)
                if faults.count > before:
                    bad |= {one.name}
            before = faults.count
        if self.complete:
            self.check_required(value, at, faults)
        for one in self._with_aliases:
            used = [name for name in (one.name, *one.aliases) if name in value]
            if len(used) > 1:
                message = f"{' and '.join(used)} are the same field"
                faults.add((at, used[1]), message, "keep one of them")
                bad |= {one.name}
        return bad

    def check_required(self, value: Mapping[str, Any], at: At, faults: Faults) -> None:
        """Note what must be there and is not."""
        for name, one in self.required.items():
            if value.get(name) is None and all(value.get(also) is None for also in one.aliases):
                remedy = f"write it, such as {one.name}: {one.example}"
                faults.add(at, f"there is no `{one.name}`", remedy)

    def schema(self) -> dict[str, Any]:
        """A reference; the definition is `definition`."""
        return {"$ref": f"#/$defs/{self.name}"}

    def definition(self) -> dict[str, Any]:
        """An object with these properties and no others."""
        properties: dict[str, Any] = {}
        for one in self.fields:
            described = {"description": one.about, **_nullable(one.kind.schema())}
            properties[one.name] = described
            for alias in one.aliases:
                properties[alias] = described
        required = {"required": [*self.required]} if self.complete else {}
        return {
            "type": "object",
            "properties": properties,
            **required,
            "additionalProperties": False,
        }

    def words(self) -> str:
        """Its name."""
        return f"[{self.name}](#{self.name})"


class Anything:
    """What somebody else reads."""

    def check(self, value: Any, at: At, faults: Faults) -> None:
        """Nothing to say."""

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


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """Null means left out, for every field."""
    return {"anyOf": [schema, {"type": "null"}]}


def _number_remedy(value: object) -> str:
    is_quoted = isinstance(value, str) and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value)
    return "leave out the quotes" if is_quoted else "write a number"


def nearest(value: object, names: Iterable[str]) -> str:
    """What somebody who wrote `value` may have meant, as a remedy; empty when nothing is near."""
    near = difflib.get_close_matches(str(value)[:64], names, n=1)
    return f"did you mean {near[0]!r}?" if near else ""


_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "text": (str,),
    "number": (int, float),
    "flag": (bool,),
    "list": (list,),
    "mapping": (dict,),
}
_ARTICLES: Final = {
    "text": "a text",
    "number": "a number",
    "flag": "true or false",
    "list": "a list",
    "mapping": "a mapping",
}
