"""The format of the history: entries, and the head that points to the newest one. Pure.

    rules.history               the head: revision, author, whether its change is complete
    rules.history/0000000012    the entry of revision 12: who, when, and every rule before and after

An entry too large for one node is split into parts next to it. Texts are stored unchanged.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from .base import KEPT_ENTRIES, Edit, Head, HistoryEntry, RuleChange, SourceError, VersionConflict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FORMAT: Final = 1
MAX_PARTS: Final = 64
"""How many parts of large entries are kept; with the number of entries, this bounds the size of a history."""
ENTRY_NAME: Final = re.compile(r"[0-9]{10}")
PART_NAME: Final = re.compile(r"([0-9]{10})\.[0-9a-f]+\.[0-9]{4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalHead:
    """The stored head."""

    head: Head
    nonce: str
    """Identifies a change, for an editor that got no answer."""
    previous: Head | None = None
    writing: bool = False
    """Whether the change is only announced: until it is complete, the previous rules apply."""


def encode_mark(mark: JournalHead) -> bytes:
    """Encode the head as JSON."""
    return _dump({"format": FORMAT, **asdict(mark)})


def decode_mark(data: bytes, where: str) -> JournalHead:
    """The inverse of `encode_mark`."""
    try:
        found = json.loads(data)
        _require_format(found, where)
        previous = found["previous"]
        return JournalHead(
            head=Head(**found["head"]),
            nonce=str(found["nonce"]),
            previous=None if previous is None else Head(**previous),
            writing=bool(found["writing"]),
        )
    except (ValueError, TypeError, KeyError):
        raise SourceError(
            f"{where} was not written by Headgate, or is damaged; remove it to start a new history",
            transient=False,
        ) from None


def finished(mark: JournalHead) -> JournalHead:
    """The same head, with its change marked as complete."""
    return replace(mark, writing=False)


def entry_name(revision: int) -> str:
    """The name of a revision's entry."""
    return f"{revision:010d}"


def entry_of(edit: Edit, revision: int) -> HistoryEntry:
    """The history entry of an edit."""
    return HistoryEntry(
        revision=revision,
        action=edit.action,
        author=edit.author,
        at=edit.at,
        changes=edit.changes,
        note=edit.note,
        forced=edit.forced,
    )


def encode_entry(
    entry: HistoryEntry, nonce: str, *, whole: int, part: int
) -> tuple[bytes, Mapping[str, bytes]]:
    """An entry as JSON, and its parts by name: none if it is at most `whole` bytes."""
    about = {
        "format": FORMAT,
        "nonce": nonce,
        **{name: getattr(entry, name) for name in ("revision", "action", "author", "at")},
        **{name: getattr(entry, name) for name in ("note", "forced")},
    }
    changes = [asdict(change) for change in entry.changes]
    data = _dump({**about, "changes": changes})
    if len(data) <= whole:
        return data, {}
    body = _dump(changes)
    cuts = range(0, len(body), part)
    parts = {
        f"{entry_name(entry.revision)}.{nonce}.{at:04d}": body[cut : cut + part]
        for at, cut in enumerate(cuts)
    }
    return _dump({**about, "parts": list(parts)}), parts


def parts_of(data: bytes) -> list[str]:
    """The names of an entry's parts."""
    found = json.loads(data)
    return [str(name) for name in found.get("parts", ())]


def nonce_of(data: bytes) -> str:
    """The nonce of the editor that wrote an entry."""
    return str(json.loads(data).get("nonce", ""))


def decode_entry(data: bytes, parts: Iterable[bytes], where: str) -> HistoryEntry:
    """Reassemble an entry."""
    try:
        found = json.loads(data)
        _require_format(found, where)
        changes: list[dict[str, Any]] = (
            json.loads(b"".join(parts)) if found.get("parts") else found["changes"]
        )
        return HistoryEntry(
            revision=int(found["revision"]),
            action=str(found["action"]),
            author=str(found["author"]),
            at=float(found["at"]),
            note=str(found["note"]),
            forced=bool(found["forced"]),
            changes=tuple(RuleChange(**change) for change in changes),
        )
    except (ValueError, TypeError, KeyError):
        raise SourceError(
            f"{where} is damaged or was not written by Headgate", transient=False
        ) from None


def forgettable(names: Iterable[str], revision: int) -> list[str]:
    """The entries and parts that are too old, or too many, when `revision` is the newest."""
    entries = sorted((name for name in names if ENTRY_NAME.fullmatch(name)), reverse=True)
    parts: dict[str, list[str]] = {}
    for name in names:
        if match := PART_NAME.fullmatch(name):
            parts.setdefault(match[1], []).append(name)
    kept = 0
    oldest = entry_name(revision)
    for name in entries[:KEPT_ENTRIES]:
        kept += len(parts.get(name, ()))
        if kept > MAX_PARTS and name != entries[0]:
            break
        oldest = name
    return [name for name in names if name[:10] < oldest]


def escape(rule_id: str) -> str:
    """A rule's id as the name of a node: any text, without slashes or other characters that a store refuses."""
    name = quote(rule_id, safe=":@,+=()~!*'")
    return f"%2E{name[1:]}" if name.startswith(".") else name


def unescape(name: str) -> str:
    """The inverse of `escape`."""
    return unquote(name)


def as_text(data: bytes) -> str:
    """Bytes as text that can be converted back without loss."""
    return data.decode("utf-8", "surrogateescape")


def as_bytes(text: str) -> bytes:
    """The inverse of `as_text`."""
    return text.encode("utf-8", "surrogateescape")


def _require_format(found: Mapping[str, Any], where: str) -> None:
    if found["format"] != FORMAT:
        raise SourceError(
            f"{where} has format {found['format']!r}, but this version of Headgate reads {FORMAT}; "
            "upgrade it",
            transient=False,
        )


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def conflict_with(head: Head, rule_ids: Sequence[str]) -> VersionConflict:
    """The error for the second of two editors."""
    when = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(head.at))
    named = ", ".join(rule_ids[:5]) + (
        f" and {len(rule_ids) - 5} more" if len(rule_ids) > 5 else ""
    )
    return VersionConflict(
        f"{head.author} was first: revision {head.revision} ({head.action} of {named}) at {when}; "
        "nothing was written: look at it and try again",
        head,
    )
