"""Inputs from inputs, by chance: the same ones for the same seed.

Most are small slips, as people and programs make them. Some repeat a piece until the input is large: that is what finds
work that grows faster than its input.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

MAX_BYTES: Final = 65_536
GROWN: Final = 0.03
"""How many inputs are made large."""
WORDS: Final = (
    *(b'"', b"\\", b'\\"', b"\\u0041", b"\\ud800", b"\\udc00", b"{", b"}", b"[", b"]", b":", b","),
    *(
        b"\n",
        b"\r\n",
        b"\t",
        b"\0",
        b"\x7f",
        b"\xff",
        b"\xc0\xaf",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
    ),
    *(b"%", b"%2f", b"%5C", b"%00", b"%25", b"%c0%af", b"..", b"/../", b"//", b";", b"?", b"#"),
    *(b"0", b"-1", b"1e999", b"NaN", b"true", b"null", b"9007199254740993", b"0.1", b"1e-9"),
    *(b"burst 5", b"per ", b"calendar month", b"anchor 31", b"in Europe/Berlin", b"/second"),
    *(b'"key"', b'"limit"', b'"window"', b'"cost"', b'"algorithm"', b'"burst"', b'"checks"'),
    *(b"- ", b"&a", b"*a", b"<<", b"!!python", b"rule_id: ", b"match: ", b"rate: ", b"overrides: "),
)
NUMBER: Final = re.compile(rb"\d+")


def mutated(corpus: Sequence[bytes], chance: random.Random) -> bytes:
    """One more input."""
    data = chance.choice(corpus)
    for _ in range(chance.choice((1, 1, 2, 3, 5))):
        data = chance.choice(SLIPS)(data, corpus, chance)
    if chance.random() < GROWN:
        data = _grown(data, chance)
    return data[:MAX_BYTES]


def _place(data: bytes, chance: random.Random) -> tuple[int, int]:
    """A piece of the data, mostly a short one."""
    begins = chance.randint(0, len(data))
    return begins, min(len(data), begins + chance.choice((0, 1, 1, 2, 4, 16, 64)))


def _cut(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    begins, ends = _place(data, chance)
    return data[:begins] + data[ends:]


def _doubled(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    begins, ends = _place(data, chance)
    return data[:ends] + data[begins:]


def _flipped(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    if not data:
        return data
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def _worded(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    begins, ends = _place(data, chance)
    return data[:begins] + chance.choice(WORDS) + data[chance.choice((begins, ends)) :]


def _numbered(data: bytes, _: Sequence[bytes], chance: random.Random) -> bytes:
    found = list(NUMBER.finditer(data))
    if not found:
        return data
    one = chance.choice(found)
    power = 10 ** chance.choice((0, 1, 3, 6, 15, 16, 17, 40))
    number = chance.choice((0, 1, int(one[0][:20]) + 1, power, power - 1, 2**53))
    return data[: one.start()] + str(number).encode() + data[one.end() :]


def _spliced(data: bytes, corpus: Sequence[bytes], chance: random.Random) -> bytes:
    other = chance.choice(corpus)
    return data[: chance.randint(0, len(data))] + other[chance.randint(0, len(other)) :]


SLIPS: Final[tuple[Callable[[bytes, Sequence[bytes], random.Random], bytes], ...]] = (
    *(_cut, _doubled, _flipped, _worded, _worded, _numbered, _spliced),
)


def _grown(data: bytes, chance: random.Random) -> bytes:
    """The data with one piece of it repeated as often as there is room for."""
    begins, ends = _place(data, chance)
    piece = data[begins:ends] or chance.choice(WORDS)
    size = chance.choice((4_096, MAX_BYTES // 2, MAX_BYTES))
    return data[:begins] + piece * max(1, (size - len(data)) // len(piece)) + data[ends:]
