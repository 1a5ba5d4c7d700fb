"""Checks that differ in their keys only: they are written alike, so one of them is read, and the body is cut where the keys begin and end.

A program that sends a batch writes the same text around every key. What stands around the first one is looked up in the body, and the first
check is read as any check is. Nothing else has to be understood, if nothing else can be meant: each key is text that JSON takes as it stands
(without a quote, a backslash or a control character), and with the first key instead of it each check would be the first one, letter by letter.

Whatever is not certainly so is not read here.
"""

from __future__ import annotations

import re
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from . import wire
from .problems import ProblemError
from .wire import SHORT_KEY, PlainCheck

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHECK: Final = msgspec.json.Decoder(PlainCheck)
_BEGINNING: Final = re.compile(
    r"""
    \{ \ *+ "checks" \ *+ : \ *+ \[ \ *+
    (?P<before> \{ (?> [^{}\\]*? "key" \ *+ : \ *+ " ) )
    (?P<key> [^"\\]*+ )
    (?P<behind> " [^{}\\]*+ \} )
    (?P<between> \ *+ , \ *+ )
    """,
    re.VERBOSE,
)
"""The first check of several, and what parts it from the next. Nothing is tried twice: a body may be long, and made to be hard to read."""


class Alike(NamedTuple):
    """Two or more checks that stand side by side and differ in their keys only."""

    check: PlainCheck
    """The first of them; it says what all of them ask for."""
    keys: list[str]

    def one_by_one(self) -> Iterator[PlainCheck]:
        """The same checks, each for itself."""
        _, *asked = msgspec.structs.astuple(self.check)
        return map(PlainCheck, self.keys, *map(repeat, asked))


def read_alike(body: bytes) -> Alike | None:
    """The checks of a body that has two or more, and all of them alike; `None` if that is not certain."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    first = _BEGINNING.match(text)
    if first is None:
        return None
    before, key, behind, between = first.groups()
    end = behind + "]}"
    if not text.endswith(end):
        return None
    keys = text[first.start("key") : -len(end)].split(behind + between + before)
    return None if not _are_plain(keys) else _alike(before + key + behind, keys)


def _alike(check: str, keys: list[str]) -> Alike | None:
    try:
        first, unknown = wire.read(_CHECK, check.encode())
    except ProblemError:
        return None
    return None if unknown else Alike(first, keys)


def _are_plain(keys: list[str]) -> bool:
    """Whether keys are good, and written in JSON as they are."""
    text = "".join(keys)
    return (
        text.isprintable()
        and '"' not in text
        and "\\" not in text
        and all(keys)
        and (len(text) <= SHORT_KEY or max(map(len, keys)) <= SHORT_KEY)
    )
