r"""The key that a rule counts a request under.

With one identifier, the key is its value: user id `42` is counted under `42`. With several, the values are joined by
`|`. `~` escapes `|` and itself. A key with a single `~` in front is not an identifier value:

    ~ip=203.0.113.9     the address, in place of a missing identifier (`on_missing: ip_address`)
    ~none               all requests without one (`share`), or the one that is denied (`deny`)
    ~sha256=…           a key that is too long for an engine, or not valid text

API keys, and headers known to carry secrets, are counted under a digest (`secrets`): `sha256:…`.

A value that starts with `~` gets a second one, so no client can forge such a key. A template is one string, and its
author decides what separates its parts; only `~` is doubled there.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ...charge import MAX_KEY_BYTES
from .addresses import group_of
from .path_patterns import capture, pieces_of
from .secrets import digest_of, is_secret

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model import IdentifierPart, Rule
    from .normalized_request import NormalizedRequest

Reader: TypeAlias = "Callable[[NormalizedRequest], str | None]"
"""What one part of an identifier reads from a request; nothing when it is not there."""

NONE: Final = "~none"
MAX_PLAIN: Final = MAX_KEY_BYTES // 4
"""No text of so many characters has more bytes than a key may have."""


class IdentifiedKey(NamedTuple):
    """Whom one request is counted for by one rule."""

    key: str
    value: str | None
    """What overrides and exemptions name: the identifier itself, and nothing where a part of it was missing."""
    missing: str = ""
    """The part that was missing."""


class KeyReader:
    """The identifier of one rule, made ready: `KeyReader(rule)(facts)` is whom it counts for."""

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

    def __call__(self, request: NormalizedRequest) -> IdentifiedKey:
        """Whom this request is counted for."""
        values = [reader(request) for reader in self._readers]
        missing = next(
            (name for name, value in zip(self._names, values, strict=True) if not value), ""
        )
        if missing:
            return IdentifiedKey(self._together(values, request), None, missing)
        if self._joined:
            return IdentifiedKey(self._together(values, request), "".join(map(str, values)))
        key = self._together(values, request)
        return IdentifiedKey(key, values[0] if len(values) == 1 else key)

    def _together(self, values: list[str | None], request: NormalizedRequest) -> str:
        """The key of these values, with something in the place of those that are missing."""
        if self._joined:
            written = [
                self._instead(request) if not value else value.replace("~", "~~")
                for value in values
            ]
            return _storable("".join(written))
        if len(values) == 1:
            (value,) = values
            if not value:
                return self._instead(request)
            return _storable(f"~{value}" if value[0] == "~" else value)
        return _storable(
            "|".join(
                value.replace("~", "~~").replace("|", "~|") if value else self._instead(request)
                for value in values
            )
        )

    def _instead(self, request: NormalizedRequest) -> str:
        if self._on_missing == "ip_address" and request.address is not None:
            return f"~ip={request.address.group}"
        return NONE


def _reader(part: IdentifierPart, pattern: str | None) -> Reader:
    """How to read one part, as others may see it."""
    read = _value_reader(part, pattern)
    return _secretly(read) if is_secret(part) else read


def _value_reader(part: IdentifierPart, pattern: str | None) -> Reader:
    kind, name = part.kind, part.name
    if kind == "ip_address" and name:
        prefix = int(name)
        return lambda request: (
            None if request.address is None else group_of(request.address, prefix)
        )
    if kind == "path" and name:
        pieces = pieces_of(pattern or "")
        return lambda request: capture(pieces, name, request.segments)
    if kind == "text":
        return lambda _: name
    if kind == "header":
        return lambda request: request.headers.get(name)
    if kind == "descriptor":
        return lambda request: next((v for k, v in request.descriptors if k == name), None)
    return _READERS[kind]


def _secretly(read: Reader) -> Reader:
    """Reads the digest of what `read` reads."""

    def digest(request: NormalizedRequest) -> str | None:
        value = read(request)
        return digest_of(value) if value else None

    return digest


_READERS: Final[dict[str, Reader]] = {
    "ip_address": lambda request: None if request.address is None else request.address.group,
    "user_id": lambda request: request.user_id,
    "api_key": lambda request: request.api_key,
    "path": lambda request: request.path,
    "host": lambda request: request.host,
    "method": lambda request: "GET" if request.method == "HEAD" else request.method,
    "global": lambda _: "global",
}


def _name(part: IdentifierPart) -> str:
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
