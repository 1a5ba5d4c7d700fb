"""Per-key settings: permanent limits, temporary overrides, and bans.

Each is stored as a JSON text under a short name: `l:key`, `o:key`, `b:key`, and `r:rule:key` for an override of a
rule's limits. A limit is stored as the rate that the operator wrote, and parsed when it is read. An unreadable entry is
ignored, so that one from a newer version never stops an older node.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from ..charge import require_key
from ..errors import HeadgateError, UsageError
from ..rate import limits_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..algorithms import Limit

Kind: TypeAlias = Literal["l", "o", "b"]
FOREVER_US: Final = 2**53 - 1
MAX_TEXT: Final = 500
"""The maximum length of a reason or a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOverride:
    """The limit of one key, instead of the default or of a rule's limits.

    >>> KeyOverride(key="user:42", rate="5/minute", by="ann").limit
    SlidingWindow(limit=5, window_us=60000000)
    """

    key: str
    rate: str
    """One rate, such as `100/minute burst 20`."""
    algorithm: str | None = None
    until_us: int | None = None
    """When it ends; `None` if it is permanent."""
    by: str = ""
    reason: str = ""
    set_at_us: int = 0
    rule: str | None = None
    """The rule whose limits it replaces; `None` for requests without a rule."""

    def __post_init__(self) -> None:
        require_key(self.key)
        _require_short(self.by, self.reason)
        if len(limits_of(self.rate, self.algorithm)) != 1:
            raise UsageError(f"a key can have only one limit, and {self.rate!r} is several")

    @property
    def limit(self) -> Limit:
        """The parsed rate."""
        return limits_of(self.rate, self.algorithm)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ban:
    """A key that an operator has banned."""

    key: str
    until_us: int | None = None
    """When it ends; `None` if it is permanent."""
    by: str = ""
    reason: str = ""
    set_at_us: int = 0

    def __post_init__(self) -> None:
        require_key(self.key)
        _require_short(self.by, self.reason)


def name_of(kind: Kind, key: str, rule: str | None = None) -> str:
    """The name that an entry is stored under."""
    return f"{kind}:{key}" if rule is None else f"r:{quote(rule, safe='')}:{key}"


def to_bytes(entry: KeyOverride | Ban) -> bytes:
    """Serialise an entry for the store; the key and the rule are in its name."""
    words = {name: getattr(entry, name) for name in entry.__slots__ if name not in ("key", "rule")}
    return json.dumps(words, separators=(",", ":")).encode()


class KeySettings:
    """All per-key settings, parsed: only changed entries are parsed again."""

    def __init__(self) -> None:
        self._blobs: Mapping[str, bytes] = {}
        self._entries: dict[str, KeyOverride | Ban] = {}
        self._next_end_us = 0
        self.in_force = ActiveSettings({}, {}, {}, {}, {}, {})

    def __len__(self) -> int:
        return len(self._blobs)

    def __contains__(self, name: str) -> bool:
        return name in self._blobs

    def put(self, name: str, blob: bytes | None, now_us: int) -> None:
        """Set or remove a single entry."""
        blobs = {one: its for one, its in self._blobs.items() if one != name}
        self.replace(blobs if blob is None else {**blobs, name: blob}, now_us)

    def replace(self, blobs: Mapping[str, bytes], now_us: int) -> None:
        """Replace all entries."""
        before, entries = self._blobs, {}
        for name, blob in blobs.items():
            entry = self._entries.get(name) if before.get(name) == blob else _read(name, blob)
            if entry is not None:
                entries[name] = entry
        self._blobs, self._entries = dict(blobs), entries
        self._next_end_us = 0
        self.end(now_us)

    def end(self, now_us: int) -> None:
        """Drop expired entries."""
        if now_us < self._next_end_us:
            return
        live = [(name, one) for name, one in self._entries.items() if _end_us(one) > now_us]
        limits: dict[str, KeyOverride] = {}
        overrides: dict[str, KeyOverride] = {}
        rule_overrides: dict[str, dict[str, KeyOverride]] = {}
        bans: dict[str, Ban] = {}
        for name, entry in live:
            if isinstance(entry, Ban):
                bans[entry.key] = entry
            elif entry.rule is not None:
                rule_overrides.setdefault(entry.rule, {})[entry.key] = entry
            else:
                (limits if name[0] == "l" else overrides)[entry.key] = entry
        effective = {key: one.limit for key, one in {**limits, **overrides}.items()}
        by_rule = {
            rule: {key: one.limit for key, one in of_rule.items()}
            for rule, of_rule in rule_overrides.items()
        }
        self.in_force = ActiveSettings(effective, by_rule, bans, limits, overrides, rule_overrides)
        self._next_end_us = min((_end_us(one) for _, one in live), default=FOREVER_US)


class ActiveSettings(NamedTuple):
    """The settings in force, by key."""

    limits: Mapping[str, Limit]
    rule_limits: Mapping[str, Mapping[str, Limit]]
    bans: Mapping[str, Ban]
    key_limits: Mapping[str, KeyOverride]
    overrides: Mapping[str, KeyOverride]
    rule_overrides: Mapping[str, Mapping[str, KeyOverride]]


def _read(name: str, blob: bytes) -> KeyOverride | Ban | None:
    kind, _, key = name.partition(":")
    rule = None
    if kind == "r":
        quoted, _, key = key.partition(":")
        rule = unquote(quoted)
    try:
        if kind == "b":
            return Ban(key=key, **_known_fields(Ban, blob))
        if kind not in ("l", "o", "r"):
            return None
        return KeyOverride(**{**_known_fields(KeyOverride, blob), "key": key, "rule": rule})
    except (HeadgateError, ValueError, TypeError):
        return None


def _end_us(entry: KeyOverride | Ban) -> int:
    return FOREVER_US if entry.until_us is None else entry.until_us


def _known_fields(kind: type[KeyOverride | Ban], blob: bytes) -> dict[str, Any]:
    """The fields that this version knows."""
    words = json.loads(blob)
    return {name: words[name] for name in kind.__slots__ if name in words}


def _require_short(*texts: str) -> None:
    for text in texts:
        if len(text) > MAX_TEXT:
            raise UsageError(f"a reason may have at most {MAX_TEXT} characters, not {len(text)}")
