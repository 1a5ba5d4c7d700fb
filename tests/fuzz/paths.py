"""Paths: one spelling each, and no way around a rule by spelling it otherwise.

The other reading is that of servers behind us which decode everything, take a backslash for a slash and then walk the
dots. A path that leads them to a place with a rule leads us to that rule, or is told to be unreadable.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from headgate.rules.format.parse import parse_rules
from headgate.rules.matching.paths import BadPathError, canonical_path
from headgate.rules.matching.rulebook import Rulebook
from headgate.rules.request import Request

BOOK: Final = Rulebook(
    parse_rules(
        "rule_id: login\nidentifier: ip_address\nmatch: {path_pattern: /login}\nrate: 1/hour"
    ).rules
)
CANONICAL: Final = re.compile(
    r"\*|/|(?:/(?:[A-Za-z0-9\-._~!$&'()*+,=:@]|%[0-9A-F]{2})+)+", re.ASCII
)
LETTER: Final = re.compile(r"[a-z]")


def check(data: bytes) -> None:
    """Nothing but `BadPathError` escapes, a spelling is its own spelling, and rules cannot be passed by."""
    path = data.decode(errors="surrogateescape")
    _require_login_is_seen(path)
    try:
        canonical = canonical_path(path)
    except BadPathError as error:
        assert str(error)  # noqa: PT017
        return
    assert CANONICAL.fullmatch(canonical), canonical
    assert not {".", ".."} & set(canonical.split("/")), canonical
    assert canonical_path(canonical) == canonical
    _require_escapes_change_nothing(path, canonical)


def _require_escapes_change_nothing(path: str, canonical: str) -> None:
    """A letter is the same when it is escaped; one in a scheme or behind a question mark is no part of a path."""
    letter = LETTER.search(path, path.find("/", path.find("://") + 3))
    if letter is None or "?" in path or "#" in path or not path.startswith("/"):
        return
    escaped = f"{path[: letter.start()]}%{ord(letter[0]):02x}{path[letter.end() :]}"
    before = path[: letter.start()]
    if "%" in before[-2:]:
        return  # It is part of an escape itself.
    try:
        found = canonical_path(escaped)
    except BadPathError:
        return  # It got too long.
    assert found == canonical, escaped


def _require_login_is_seen(path: str) -> None:
    if not path.startswith(("/", "\\")) or _as_others_read(path) != "/login":
        return
    request = Request("GET", path, ip="203.0.113.9")
    assert BOOK.charges(request) or request.path_refused, path


def _as_others_read(path: str) -> str:
    target = path.partition("?")[0].partition("#")[0]
    decoded = unquote(target, errors="surrogateescape").replace("\\", "/")
    kept: list[str] = []
    for segment in decoded.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in {"", "."}:
            kept.append(segment)
    return "/" + "/".join(kept)
