"""Words: commands as they are sent, made of words that were packed before.

hiredis packs a command word by word, and for a batch that takes longer than to send it. Nearly all words of our calls are known long
before: the name of a state is packed when it is made, its limit once for all, and a call is then a join.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .scripts import Words


def packed_word(word: bytes) -> bytes:
    """A word as it is sent."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


def plain_word(packed: bytes) -> bytes:
    """The word that was packed."""
    return packed[packed.index(b"\n") + 1 : -2]


@cache
def head_of_call(words: Words, keys: int, arguments: int) -> bytes:
    """What comes before the keys in a call of a script or a function that begins with `words`."""
    count = b"*%d\r\n" % (len(words) + 1 + keys + arguments)
    return b"".join([count, *map(packed_word, words), packed_word(b"%d" % keys)])


class Starts(dict[int, bytes]):
    """How the word of a text that follows `before` starts, by the length of that text."""

    def __init__(self, before: bytes) -> None:
        self._before = before

    def __missing__(self, length: int) -> bytes:
        start = self[length] = b"$%d\r\n%b" % (len(self._before) + length, self._before)
        return start
