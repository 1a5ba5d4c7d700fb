"""Packing: commands in wire format, joined from words that are packed in advance.

hiredis packs a command word by word, which for a batch takes longer than sending it. Nearly all words of our calls are
known long before: the name of a state is packed when it is created, its limit once, and a call is just a join.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from hiredis import pack_command

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .scripts import Words


def packed_command(command: Iterable[Any]) -> bytes:
    """Pack a command of strings, bytes and integers.

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
    """Pack one word."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


def unpacked_bulk(packed: bytes) -> bytes:
    """The inverse of `packed_bulk`."""
    return packed[packed.index(b"\n") + 1 : -2]


@cache
def head_of_call(words: Words, keys: int, arguments: int) -> bytes:
    """Everything before the keys, in a call of a script or a function that begins with `words`."""
    count = b"*%d\r\n" % (len(words) + 1 + keys + arguments)
    return b"".join([count, *map(packed_bulk, words), packed_bulk(b"%d" % keys)])


MAX_STARTS = 32
"""How many lengths are cached per limit; there may be thousands of limits."""


class BulkPrefixes(dict[int, bytes]):
    """The start of a packed word, for a text after `before`, by the length of that text."""

    def __init__(self, before: bytes) -> None:
        self._before = before

    def __missing__(self, length: int) -> bytes:
        if len(self) >= MAX_STARTS:
            self.clear()
        start = self[length] = b"$%d\r\n%b" % (len(self._before) + length, self._before)
        return start
