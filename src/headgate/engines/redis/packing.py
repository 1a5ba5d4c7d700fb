"""Packing: commands in wire format, joined from words that were packed before.

hiredis packs a command word by word, and for a batch that takes longer than to send it. Nearly all words of our calls
are known long before: the name of a state is packed when it is made, its limit once for all, and a call is then a join.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from hiredis import pack_command

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .scripts import Words


def packed_command(command: Iterable[Any]) -> bytes:
    """A command of texts, bytes and whole numbers, as it is sent.

    hiredis gets only bytes. Converting a number to text can run Python's signal handlers; hiredis does not expect them
    to raise there, and the process would crash.
    """
    words: Any = tuple([word if type(word) is bytes else _as_bytes(word) for word in command])
    packed: bytes = pack_command(words)
    return packed


def _as_bytes(word: Any) -> bytes:
    if isinstance(word, str):
        return word.encode()
    if isinstance(word, bytes):
        return word
    if type(word) is int:
        return b"%d" % word
    raise TypeError(f"{word!r:.80} cannot be sent to redis")


def packed_bulk(word: bytes) -> bytes:
    """A word as it is sent."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


def unpacked_bulk(packed: bytes) -> bytes:
    """The word that was packed."""
    return packed[packed.index(b"\n") + 1 : -2]


@cache
def head_of_call(words: Words, keys: int, arguments: int) -> bytes:
    """What comes before the keys in a call of a script or a function that begins with `words`."""
    count = b"*%d\r\n" % (len(words) + 1 + keys + arguments)
    return b"".join([count, *map(packed_bulk, words), packed_bulk(b"%d" % keys)])


MAX_STARTS = 32
"""How many lengths are kept for one limit; there may be thousands of limits."""


class BulkPrefixes(dict[int, bytes]):
    """How the word of a text that follows `before` starts, by the length of that text."""

    def __init__(self, before: bytes) -> None:
        self._before = before

    def __missing__(self, length: int) -> bytes:
        if len(self) >= MAX_STARTS:
            self.clear()
        start = self[length] = b"$%d\r\n%b" % (len(self._before) + length, self._before)
        return start
