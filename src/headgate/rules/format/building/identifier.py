"""What requests are counted by: one name, a list of names, or a template.

name      = ip_address | user_id | api_key | path | host | method | global
          | ip_address/<prefix of IPv6> | header:<name> | descriptor:<key> | {<name in the path pattern>}
template  = text with { name } in it, such as "{user_id}:{header:x-team}"
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from ....errors import UsageError
from ...model import Identifier, IdentifierPart
from ..field_types import nearest

if TYPE_CHECKING:
    from collections.abc import Collection

PlainKind = Literal["ip_address", "user_id", "api_key", "path", "host", "method", "global"]
PLAIN: Final[tuple[PlainKind, ...]] = get_args(PlainKind)
EXAMPLES: Final = (
    "write one of " + ", ".join(PLAIN) + ", ip_address/48, header:<name>, descriptor:<key>, "
    "or {<name>} for a name in the path pattern"
)
SIMPLE_IDENTIFIERS: Final = {name: Identifier(parts=(IdentifierPart(kind=name),)) for name in PLAIN}
"""The identifiers that are a single word."""
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_RANGE: Final = re.compile(r"ip_address/([0-9]{1,3})")
_PIECE: Final = re.compile(r"\{([^{}]*)\}|([^{}]+)|[{}]")


Names: TypeAlias = "Collection[str] | None"
"""The names in a path pattern; `None` if they are unknown."""


def identifier_of(written: str | list[str], names: Names) -> Identifier:
    """Parse the identifier of a rule whose path pattern has these `names`; raises `UsageError`."""
    if isinstance(written, list):
        parts = tuple(_item(item, names) for item in written)
        if len(set(parts)) < len(parts):
            raise UsageError("the same part appears twice; keep one of them")
        return Identifier(parts=parts)
    if written in SIMPLE_IDENTIFIERS:
        return SIMPLE_IDENTIFIERS[written]
    if "{" not in written and "}" not in written:
        return Identifier(parts=(_part(written),))
    parts = tuple(_template(written, names))
    if len(parts) == 1:
        return Identifier(parts=parts)
    return Identifier(parts=parts, joined=True)


def _item(item: str, names: Names) -> IdentifierPart:
    """One item of a list: a name, or a name in braces."""
    if item.startswith("{") and item.endswith("}"):
        return _placeholder(item[1:-1], names)
    return _part(item)


def _template(text: str, names: Names) -> Any:
    for found in _PIECE.finditer(text):
        placeholder, fixed = found[1], found[2]
        if placeholder is not None:
            yield _placeholder(placeholder, names)
        elif fixed is not None:
            yield IdentifierPart(kind="text", name=fixed)
        else:
            raise UsageError(f"{text!r} has an unmatched brace; {EXAMPLES}")


def _placeholder(word: str, names: Names) -> IdentifierPart:
    if names is not None and word in names:
        return IdentifierPart(kind="path", name=word)
    if word in SIMPLE_IDENTIFIERS or ":" in word or _RANGE.fullmatch(word):
        return _part(word)
    if names is None:
        return IdentifierPart(kind="path", name=word)
    have = f"has {', '.join(sorted(names))}" if names else "has no names"
    raise UsageError(
        f"{'{' + word + '}'!r} stands for nothing, the path pattern {have}; {EXAMPLES}"
    )


def _part(word: str) -> IdentifierPart:
    if word in SIMPLE_IDENTIFIERS:
        return SIMPLE_IDENTIFIERS[word].parts[0]
    range_ = _RANGE.fullmatch(word)
    if range_ is not None:
        prefix = int(range_[1])
        if not 16 <= prefix <= 64:
            raise UsageError(f"{word!r} has an invalid prefix; write one from 16 to 64")
        return IdentifierPart(kind="ip_address", name=str(prefix) if prefix < 64 else "")
    kind, colon, name = word.partition(":")
    if kind == "header" and colon:
        if not _HEADER_NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not the name of a header; write, for example, header:x-team"
            )
        return IdentifierPart(kind="header", name=name.lower())
    if kind == "descriptor" and name:
        return IdentifierPart(kind="descriptor", name=name)
    remedy = nearest(word, PLAIN) or EXAMPLES
    raise UsageError(f"{word!r} is not an identifier; {remedy}")
