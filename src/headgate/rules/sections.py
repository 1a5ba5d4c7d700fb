"""Kinds that are made of others: lists, mappings, alternatives, and sections, which are tables of fields."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from .faults import shown
from .kinds import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .faults import At, Faults
    from .kinds import Kind, Text


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

    def glance(self) -> str:
        """Items with commas behind them; of JSON it is certain that the last has none."""
        return rf"\[(?:{self.kind.glance()},?+){{{self.low},{self.high}}}+\]"

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

    def glance(self) -> str:
        """Pairs with commas behind them."""
        return rf"\{{(?:{self.key.glance()}:{self.kind.glance()},?+){{0,{self.high}}}+\}}"

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
        self._checks = {
            kind_type: kind.check for shape, kind in kinds.items() for kind_type in _TYPES[shape]
        }

    def check(self, value: Any, at: At, faults: Faults) -> None:
        """Check it as the kind that its type says it is."""
        check = self._checks.get(type(value))
        if check is None:
            faults.add(
                at, f"must be {self._shapes()}, not {shown(value)}", f"write {self._shapes()}"
            )
        else:
            check(value, at, faults)

    def glance(self) -> str:
        """Any of them."""
        return f"(?:{'|'.join(kind.glance() for kind in self._kinds.values())})"

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
        self._aliases = frozenset(alias for one in self.fields for alias in one.aliases)
        self._checks = {name: one.kind.check for name, one in self.by_name.items()}

    def check(self, value: Any, at: At, faults: Faults) -> None:
        """Check every field; what is null counts as left out."""
        if type(value) is dict:
            self.check_fields(value, at, faults)
        else:
            names = ", ".join(one.name for one in self.fields[:3])
            message = f"must be a mapping, not {shown(value)}"
            faults.add(at, message, f"write its fields, such as {names}")

    def check_fields(self, value: Mapping[str, Any], at: At, faults: Faults) -> None:
        """The same for what is known to be a mapping."""
        for key, item in value.items():
            check = self._checks.get(key)
            if check is None:
                self._note_unknown(key, at, faults)
            elif item is not None:
                check(item, (at, key), faults)
        if self.complete:
            self.check_required(value, at, faults)
        if not self._aliases.isdisjoint(value):
            self._check_names(value, at, faults)

    def _note_unknown(self, key: str, at: At, faults: Faults) -> None:
        names = ", ".join(one.name for one in self.fields)
        remedy = nearest(key, self.by_name) or f"there are {names}"
        faults.add((at, key), f"there is no field {shown(key)} here", remedy)

    def _check_names(self, value: Mapping[str, Any], at: At, faults: Faults) -> None:
        """Note fields that are there under two of their names."""
        for one in self.fields:
            used = [name for name in (one.name, *one.aliases) if name in value]
            if len(used) > 1:
                message = f"{' and '.join(used)} are the same field"
                faults.add((at, used[1]), message, "keep one of them")

    def check_required(self, value: Mapping[str, Any], at: At, faults: Faults) -> None:
        """Note what must be there and is not."""
        for name, one in self.required.items():
            if value.get(name) is None and all(value.get(also) is None for also in one.aliases):
                if self.misspells(value, (name, *one.aliases)):
                    continue
                remedy = f"write it, such as {one.name}: {one.example}"
                faults.add(at, f"there is no `{one.name}`", remedy)

    def misspells(self, value: Iterable[str], names: Iterable[str]) -> bool:
        """Whether a field that is not known here may be meant for one of these: to call that missing would mislead."""
        return any(nearest(key, names) for key in value if key not in self.by_name)

    def glance(self) -> str:
        """Fields under their first names, sorted by them, and none that is null."""
        fields = [
            f'(?:"{re.escape(one.name)}":{one.kind.glance()},?+)'
            + ("" if one.required and self.complete else "?+")
            for one in sorted(self.fields, key=lambda one: one.name)
        ]
        return rf"\{{{''.join(fields)}\}}"

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


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """Null means left out, for every field."""
    return {"anyOf": [schema, {"type": "null"}]}


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
