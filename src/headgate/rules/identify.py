r"""Whom a request is counted for: the key that a rule makes of it.

One part of an identifier is its own key: the user id `42` is counted under `42`. Several parts stand side by side, with `|`
between them. `~` is what keeps different things apart: inside a list it escapes `|` and itself, and a key that begins with
it, or has one alone, was not made of values that the request has:

    ~ip=203.0.113.9     the address, in place of a part that is missing (`on_missing: ip_address`)
    ~none               all requests without it together (`share`), or the one that is denied (`deny`)
    ~sha256=…           a key that was too long for an engine, or no text

API keys, and headers that are known to carry secrets, are counted under a digest of them (`secrets`): `sha256:…`.

A value that begins with `~` is written with two, so nobody can name himself into the place of somebody else. A template
is one text as it stands, and who writes one chooses what it keeps apart; only `~` is doubled there too.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ..charge import MAX_KEY_BYTES
from .addresses import group_of
from .patterns import capture, pieces_of
from .secrets import digest_of, is_secret

if TYPE_CHECKING:
    from collections.abc import Callable

    from .facts import Facts
    from .model import Part, Rule

Reader: TypeAlias = "Callable[[Facts], str | None]"
"""What one part of an identifier reads from a request; nothing when it is not there."""

NONE: Final = "~none"
MAX_PLAIN: Final = MAX_KEY_BYTES // 4
"""No text of so many characters has more bytes than a key may have."""


class Identity(NamedTuple):
    """Whom one request is counted for by one rule."""

    key: str
    value: str | None
    """What overrides and exemptions name: the identifier itself, and nothing where a part of it was missing."""
    missing: str = ""
    """The part that was missing."""


class Identify:
    """The identifier of one rule, made ready: `Identify(rule)(facts)` is whom it counts for."""

    __slots__ = ("_joined", "_names", "_on_missing", "_readers", "plain")

    def __init__(self, rule: Rule) -> None:
        parts = rule.identifier.parts
        pattern = rule.match.path_pattern
        self._readers = tuple(_reader(part, pattern) for part in parts)
        self._names = tuple(_name(part) for part in parts)
        self._joined = rule.identifier.joined
        self.plain = self._readers[0] if len(parts) == 1 else None
        """Reads the only part, where there is one: a value of few letters, all ASCII and no `~` first, is the key."""
        self._on_missing = rule.on_missing

    def __call__(self, facts: Facts) -> Identity:
        """Whom this request is counted for."""
        values = [reader(facts) for reader in self._readers]
        missing = next(
            (name for name, value in zip(self._names, values, strict=True) if not value), ""
        )
        if missing:
            return Identity(self._together(values, facts), None, missing)
        if self._joined:
            return Identity(self._together(values, facts), "".join(map(str, values)))
        key = self._together(values, facts)
        return Identity(key, values[0] if len(values) == 1 else key)

    def _together(self, values: list[str | None], facts: Facts) -> str:
        """The key of these values, with something in the place of those that are missing."""
        if self._joined:
            written = [
                self._instead(facts) if not value else value.replace("~", "~~") for value in values
            ]
            return _storable("".join(written))
        if len(values) == 1:
            (value,) = values
            if not value:
                return self._instead(facts)
            return _storable(f"~{value}" if value[0] == "~" else value)
        return _storable(
            "|".join(
                value.replace("~", "~~").replace("|", "~|") if value else self._instead(facts)
                for value in values
            )
        )

    def _instead(self, facts: Facts) -> str:
        if self._on_missing == "ip_address" and facts.address is not None:
            return f"~ip={facts.address.group}"
        return NONE


def _reader(part: Part, pattern: str | None) -> Reader:
    """How to read one part, as others may see it."""
    read = _value_reader(part, pattern)
    return _secretly(read) if is_secret(part) else read


def _value_reader(part: Part, pattern: str | None) -> Reader:
    kind, name = part.kind, part.name
    if kind == "ip_address" and name:
        prefix = int(name)
        return lambda facts: None if facts.address is None else group_of(facts.address, prefix)
    if kind == "path" and name:
        pieces = pieces_of(pattern or "")
        return lambda facts: capture(pieces, name, facts.segments)
    if kind == "text":
        return lambda _: name
    if kind == "header":
        return lambda facts: facts.headers.get(name)
    if kind == "descriptor":
        return lambda facts: next((v for k, v in facts.descriptors if k == name), None)
    return _READERS[kind]


def _secretly(read: Reader) -> Reader:
    """Reads the digest of what `read` reads."""

    def digest(facts: Facts) -> str | None:
        value = read(facts)
        return digest_of(value) if value else None

    return digest


_READERS: Final[dict[str, Reader]] = {
    "ip_address": lambda facts: None if facts.address is None else facts.address.group,
    "user_id": lambda facts: facts.user_id,
    "api_key": lambda facts: facts.api_key,
    "path": lambda facts: facts.path,
    "host": lambda facts: facts.host,
    "method": lambda facts: "GET" if facts.method == "HEAD" else facts.method,
    "global": lambda _: "global",
}


def _name(part: Part) -> str:
    mark = "/" if part.kind == "ip_address" else ":"
    return f"{part.kind}{mark}{part.name}" if part.name else part.kind


def _storable(key: str) -> str:
    """The key, or a digest of it where an engine would refuse it."""
    if len(key) <= MAX_PLAIN and key.isascii():
        return key
    data = key.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_KEY_BYTES:
        try:
            data.decode()
        except UnicodeDecodeError:
            pass
        else:
            return key
    return f"~sha256={sha256(data).hexdigest()}"
