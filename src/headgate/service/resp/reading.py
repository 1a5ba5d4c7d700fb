"""Bytes to commands: arrays of words, as every Redis client sends them, or a line of words, as people type them.

Reading takes time proportional to the number of bytes, however they are fragmented. Complete commands are split in one
step; only partial ones, or those with line ends inside of words, are read word by word. At most `max_bytes` of an
unfinished command are kept, and larger ones are refused as soon as they are announced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

Words: TypeAlias = Sequence[bytes]
"""A command: its name and arguments."""

CRLF: Final = b"\r\n"
MAX_LINE: Final = 1_024
"""The maximum length of a typed line, or of a line with a length."""
WORD_BYTES: Final = 16
"""The overhead of a word: many empty ones are a burden, too."""
MAX_DIGITS: Final = 9
LENGTHS: Final = [b"$%d" % length for length in range(1_025)]
COUNTS: Final = {b"*%d" % count: count for count in range(1, 1_025)}


class TypedLine(list[bytes]):
    """A command that came as a line: typed by a person, or sent by a client of another protocol."""


class CommandReader:
    """Reads the input of one client."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        """The maximum size of a command; may be changed between commands."""
        self._buffer = bytearray()
        self._words: list[bytes] = []
        self._missing = 0  # Words of the command that are still missing.
        self._length = -1  # Bytes of the next word, if known.
        self._size = 0  # The size of the command so far.
        self._at = 0  # The position in the buffer.
        self.error = ""
        """What is wrong with the input; nothing after that is read."""

    @property
    def unfinished(self) -> bool:
        """Whether a command has begun to arrive."""
        return bool(self._missing or self._buffer)

    def feed(self, data: bytes) -> list[Words]:
        """The commands that are complete now."""
        commands: list[Words] = []
        if self.error:
            return commands
        if self.unfinished:
            self._buffer += data
            data = self._read_first(commands)
        if data:
            data = self._split(data, commands)
        if data:
            self._buffer = bytearray(data)
            self._read_carefully(commands)
        return commands

    def _read_first(self, commands: list[Words]) -> bytes:
        """Finish the command that has begun; returns the rest of the input."""
        self._at = 0
        while not commands and not self.error and self._step(commands):
            pass
        if self._missing or self.error:  # There may be much of it, so it is not copied.
            del self._buffer[: self._at]
            return b""
        rest = bytes(self._buffer[self._at :])
        self._buffer = bytearray()
        return rest

    def _read_carefully(self, commands: list[Words]) -> None:
        """Read word by word."""
        self._at = 0
        while not self.error and self._step(commands):
            pass
        del self._buffer[: self._at]

    def _split(self, data: bytes, commands: list[Words]) -> bytes:
        """Split off all complete and plain commands at once; returns the rest."""
        parts = data.split(CRLF)
        at = 0
        if len(data) <= self.max_bytes:
            alike = _alike(parts)
            commands += alike
            at = len(alike) and (2 * len(alike[0]) + 1) * len(alike)
        last = len(parts) - 1
        while at < last:
            count = COUNTS.get(parts[at])
            if count is None:
                break
            end = at + 1 + 2 * count
            if end > last:
                break
            words = parts[at + 2 : end : 2]
            if parts[at + 1 : end : 2] != _lengths(words):
                break
            if len(data) > self.max_bytes and _weight(words) > self.max_bytes:
                break
            commands.append(words)
            at = end
        return data if not at else CRLF.join(parts[at:])

    def _step(self, commands: list[Words]) -> bool:
        """Read one word or one line; false if more input is needed."""
        buffer, at = self._buffer, self._at
        if self._length >= 0:
            end = at + self._length
            if len(buffer) < end + 2:
                return False
            self._at = end + 2
            if buffer[end : end + 2] != CRLF:
                self.error = "a word is longer than was said"
            else:
                self._end_word(bytes(buffer[at:end]), commands)
            return True
        end = buffer.find(CRLF, at, at + MAX_LINE + 2)
        if end < 0:
            if len(buffer) - at > MAX_LINE:
                self.error = "a line is too long"
            return False
        self._at = end + 2
        self._take_line(bytes(buffer[at:end]), commands)
        return True

    def _take_line(self, line: bytes, commands: list[Words]) -> None:
        if self._missing:
            self._begin_word(line)
        elif line[:1] == b"*":
            self._begin_command(line)
        elif words := line.split():
            commands.append(TypedLine(words))

    def _end_word(self, word: bytes, commands: list[Words]) -> None:
        self._words.append(word)
        self._length = -1
        self._missing -= 1
        if not self._missing:
            commands.append(self._words)
            self._words, self._size = [], 0

    def _begin_command(self, line: bytes) -> None:
        count = _number(line[1:])
        if line in (b"*0", b"*-1"):
            return
        if count is None or count * WORD_BYTES > self.max_bytes:
            self.error = f"a command has at most {self.max_bytes // WORD_BYTES} words"
            return
        self._missing = count

    def _begin_word(self, line: bytes) -> None:
        length = _number(line[1:]) if line[:1] == b"$" else None
        if length is None:
            self.error = "the words of a command are bulk strings, each with its length"
            return
        self._size += length + WORD_BYTES
        if self._size > self.max_bytes:
            self.error = f"a command has at most {self.max_bytes} bytes"
            return
        self._length = length


def _alike(parts: list[bytes]) -> list[Words]:
    """The commands of a pipeline that start with an equal number of words; empty if one of them is not plain.

    They form columns, most of which have the same content in every row and are checked once.
    """
    count = COUNTS.get(parts[0], 0)
    row = 2 * count + 1
    heads = parts[:-1:row]
    many = next((at for at, head in enumerate(heads) if head != parts[0]), len(heads))
    if (len(parts) - 1) // row < many:  # The last one is incomplete.
        many = (len(parts) - 1) // row
    if not count or many < 2:
        return []
    columns = []
    for place in range(1, row, 2):
        lengths, words = parts[place : many * row : row], parts[place + 1 : many * row : row]
        if words.count(words[0]) == many:
            fits = lengths.count(lengths[0]) == many and lengths[:1] == _lengths(words[:1])
        else:
            fits = lengths == _lengths(words)
        if not fits:
            return []
        columns.append(words)
    return list(zip(*columns, strict=True))


def _lengths(words: list[bytes]) -> list[bytes]:
    """The length lines of these words; empty if one is too long to be plain."""
    try:
        return [LENGTHS[len(word)] for word in words]
    except IndexError:
        return []


def _number(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) <= MAX_DIGITS else None


def _weight(words: Words) -> int:
    return sum(map(len, words)) + WORD_BYTES * len(words)
