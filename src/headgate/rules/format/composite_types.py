"""Types that are made of others: lists, mappings, alternatives, and sections, which are tables of fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from .error_collector import shown
from .field_types import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .error_collector import At, ErrorCollector
    from .field_types import FieldType, TextType


@dataclass(frozen=True, slots=True)
class ListType:
    """A list of items of one type."""

    kind: FieldType
    low: int = 0
    high: int = 1_000

    def check(self, value: Any, at: At, errors: ErrorCollector) -> None:
        """Check every item."""
        if type(value) is not list:
            errors.add(at, f"must be a list, not {shown(value)}", "write a list")
        elif not self.low <= len(value) <= self.high:
            errors.add(at, f"has {len(value)} entries", f"write {self.low} to {self.high}")
        else:
            check = self.kind.check
            for i, item in enumerate(value):
                check(item, (at, i), errors)

    def schema(self) -> dict[str, Any]:
        """An array."""
        low = {"minItems": self.low} if self.low else {}
        return {"type": "array", "items": self.kind.schema(), **low, "maxItems": self.high}

    def words(self) -> str:
        """The type of its items."""
        return f"list of {self.kind.words()}"


@dataclass(frozen=True, slots=True)
class MappingType:
    """A mapping with arbitrary keys."""

    key: TextType
    kind: FieldType
    high: int = 1_000

    def check(self, value: Any, at: At, errors: ErrorCollector) -> None:
        """Check every key and every value."""
        if type(value) is not dict:
            errors.add(at, f"must be a mapping, not {shown(value)}", "write `name: value` pairs")
        elif len(value) > self.high:
            errors.add(at, f"has {len(value)} entries", f"write at most {self.high}")
        else:
            for key, item in value.items():
                self.key.check(key, (at, key), errors)
                self.kind.check(item, (at, key), errors)

    def schema(self) -> dict[str, Any]:
        """An object with any properties."""
        return {
            "type": "object",
            "propertyNames": self.key.schema(),
            "additionalProperties": self.kind.schema(),
            "maxProperties": self.high,
        }

    def words(self) -> str:
        """The types of its keys and values."""
        return f"mapping from {self.key.words()} to {self.kind.words()}"


class OneOfType:
    """One of several types, selected by the value: a string, a number, a boolean, a list or a mapping."""

    def __init__(self, **kinds: FieldType) -> None:
        self._kinds = kinds
        self._checks = {
            kind_type: kind.check for shape, kind in kinds.items() for kind_type in _TYPES[shape]
        }

    def check(self, value: Any, at: At, errors: ErrorCollector) -> None:
        """Check it as the type that it appears to be."""
        check = self._checks.get(type(value))
        if check is None:
            errors.add(
                at, f"must be {self._shapes()}, not {shown(value)}", f"write {self._shapes()}"
            )
        else:
            check(value, at, errors)

    def schema(self) -> dict[str, Any]:
        """Any of them."""
        return {"anyOf": [kind.schema() for kind in self._kinds.values()]}

    def words(self) -> str:
        """All of them."""
        text, several = self._kinds.get("text"), self._kinds.get("list")
        if isinstance(several, ListType) and several.kind is text and len(self._kinds) == 2:
            return f"{text.words()}, one or several"
        return ", or ".join(kind.words() for kind in self._kinds.values())

    def _shapes(self) -> str:
        *most, last = (_ARTICLES[shape] for shape in self._kinds)
        return f"{', '.join(most)} or {last}"


def one_or_more(kind: FieldType, high: int = 1_000, *, low: int = 0) -> OneOfType:
    """One string, or a list of them."""
    return OneOfType(text=kind, list=ListType(kind, low, high))


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleField:
    """One line of the table: everything about one field."""

    name: str
    kind: FieldType
    about: str
    """One sentence, in Markdown."""
    example: Any
    default: str = ""
    """What applies if the field is left out, in words."""
    aliases: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True, slots=True)
class Misnomer:
    """A wrong name, and the field that is meant."""

    field: str
    note: str = ""
    """Text to append to the field's name."""


COMMON_MISTAKES: Final[Mapping[str, Misnomer]] = {
    "window": Misnomer("window_size_seconds", ", in seconds, or a `rate` such as 100/minute"),
    "window_seconds": Misnomer("window_size_seconds"),
    "period": Misnomer("window_size_seconds", ", in seconds, or a `rate` such as 100/minute"),
    "per": Misnomer("window_size_seconds", ", in seconds, or a `rate` such as 100/minute"),
    "requests": Misnomer("limit"),
    "max": Misnomer("limit"),
    "path": Misnomer("path_pattern"),
    "url": Misnomer("path_pattern"),
    "method": Misnomer("methods"),
    "hosts": Misnomer("host"),
    "ip": Misnomer("ip_subnet"),
    "cidr": Misnomer("ip_subnet"),
    "id": Misnomer("rule_id"),
    "name": Misnomer("rule_id"),
    "key": Misnomer("identifier"),
    "<<": Misnomer(
        "identifier",
        " and the other fields out; YAML merging is not supported, but `defaults:` apply to all rules",
    ),
}
"""Names of fields in other tools."""


class SectionType:
    """A mapping with known keys: a table of fields.

    `complete` is false if other fields may be added later, as a file's defaults are to a rule: required fields are then
    not checked here.
    """

    def __init__(self, name: str, fields: Sequence[RuleField], *, complete: bool = True) -> None:
        self.name = name
        self.fields = tuple(fields)
        self.required = {one.name: one for one in self.fields if one.required}
        self.complete = complete
        self.by_name = {name: one for one in self.fields for name in (one.name, *one.aliases)}
        self._aliases = frozenset(alias for one in self.fields for alias in one.aliases)
        self._checks = {name: one.kind.check for name, one in self.by_name.items()}

    def check(self, value: Any, at: At, errors: ErrorCollector) -> None:
        """Check every field; null counts as left out."""
        if type(value) is dict:
            self.check_fields(value, at, errors)
        else:
            names = ", ".join(one.name for one in self.fields[:3])
            message = f"must be a mapping, not {shown(value)}"
            errors.add(at, message, f"write its fields, such as {names}")

    def check_fields(self, value: Mapping[str, Any], at: At, errors: ErrorCollector) -> None:
        """The same for a value that is known to be a mapping."""
        checks = self._checks
        for key, item in value.items():
            if key not in checks:
                self._note_unknown(key, at, errors)
            elif item is not None:
                checks[key](item, (at, key), errors)
        if self.complete and self.required:
            self.check_required(value, at, errors)
        if self._aliases and not self._aliases.isdisjoint(value):
            self._check_names(value, at, errors)

    def _note_unknown(self, key: str, at: At, errors: ErrorCollector) -> None:
        names = ", ".join(one.name for one in self.fields)
        meant = COMMON_MISTAKES.get(key)
        if meant is not None and meant.field in self.by_name:
            remedy = f"write `{meant.field}`{meant.note}"
        else:
            remedy = nearest(key, self.by_name) or f"the fields are {names}"
        errors.add((at, key), f"there is no field {shown(key)} here", remedy)

    def _check_names(self, value: Mapping[str, Any], at: At, errors: ErrorCollector) -> None:
        """Report fields that are present under two of their names."""
        for one in self.fields:
            used = [name for name in (one.name, *one.aliases) if name in value]
            if len(used) > 1:
                message = f"{' and '.join(used)} are the same field"
                errors.add((at, used[1]), message, "keep one of them")

    def check_required(self, value: Mapping[str, Any], at: At, errors: ErrorCollector) -> None:
        """Report required fields that are missing."""
        for name, one in self.required.items():
            if value.get(name) is None and all(value.get(also) is None for also in one.aliases):
                if self.misspells(value, (name, *one.aliases)):
                    continue
                remedy = f"write it, such as {one.name}: {one.example}"
                errors.add(at, f"`{one.name}` is missing", remedy)

    def misspells(self, value: Iterable[str], names: Iterable[str]) -> bool:
        """Whether an unknown field may be meant for one of these: reporting it as missing would be misleading."""
        return any(nearest(key, names) for key in value if key not in self.by_name)

    def schema(self) -> dict[str, Any]:
        """A reference; the definition is `definition`."""
        return {"$ref": f"#/$defs/{self.name}"}

    def definition(self) -> dict[str, Any]:
        """An object with exactly these properties."""
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
    "text": "a string",
    "number": "a number",
    "flag": "true or false",
    "list": "a list",
    "mapping": "a mapping",
}
