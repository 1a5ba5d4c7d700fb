"""Bytes of the Redis protocol: however they are cut, they are read as a strict reader reads them, or refused.

The first byte of the data says where the rest is cut.
"""

from __future__ import annotations

import asyncio
import atexit
import re
from functools import cache
from typing import Any, Final

from headgate.service.node import Node
from headgate.service.resp.commands import Commands, LaterReply
from headgate.service.resp.reading import CommandReader
from headgate.service.resp.session import Session
from headgate.service.settings import Settings

MAX_BYTES: Final = 65_536
MAX_LINE: Final = 1_024
LONGEST: Final = 8_192
"""More of an input is not looked at: it would be more of the same."""
REPLIES: Final = (b"+", b"-", b":", b"$", b"*", b"%", b"_")


@cache
def commands() -> Commands:
    """One node for all inputs; nothing that waits is waited for, so no loop has to run."""
    node = Node(Settings(resp_port=1))
    atexit.register(node.close)
    return Commands(node)


def check(data: bytes) -> None:
    """Cut or whole, it is read as a strict reader reads it, and every command has a reply."""
    size, data = (data[0] % 40) + 1 if data else 1, data[1:LONGEST]
    whole, cut = CommandReader(MAX_BYTES), CommandReader(MAX_BYTES)
    found = [list(words) for words in whole.feed(data)]
    pieces = [
        list(words) for at in range(0, len(data), size) for words in cut.feed(data[at : at + size])
    ]
    assert found == pieces, (found, pieces)
    assert bool(whole.error) == bool(cut.error)
    strict, sound = strictly(data)
    assert found == strict, (found, strict)
    assert sound is not bool(whole.error), whole.error
    answer(found)


def answer(found: list[list[bytes]]) -> None:
    """Each command has one reply, or something that somebody would wait for."""
    session = Session(commands()._node.auth, "127.0.0.1")
    for words in found[:50]:
        reply = commands().answer(session, words)
        if isinstance(reply, LaterReply):
            forget(reply.answer)
            continue
        assert reply[:1] in REPLIES, reply
        assert reply.endswith(b"\r\n"), reply
        assert not reply.startswith(b"-ERR the command failed"), (words, reply)


def forget(waiting: Any) -> None:
    """Nobody awaits it; it has not begun."""
    if asyncio.iscoroutine(waiting):
        waiting.close()


def strictly(data: bytes) -> tuple[list[list[bytes]], bool]:
    """The commands in some bytes, slowly, and whether nothing is wrong with them."""
    found: list[list[bytes]] = []
    at = 0
    while at < len(data):
        end = data.find(b"\r\n", at)
        if end < 0 or end - at > MAX_LINE:
            return found, len(data) - at <= MAX_LINE if end < 0 else False
        line, at = data[at:end], end + 2
        if line[:1] != b"*":
            if line.split():
                found.append(line.split())
            continue
        if line in (b"*0", b"*-1"):
            continue
        if not re.fullmatch(rb"\*[0-9]{1,9}", line) or int(line[1:]) * 16 > MAX_BYTES:
            return found, False
        words, at, sound = words_at(data, at, int(line[1:]))
        if words is None or not sound:
            return found, sound
        if words:
            found.append(words)
    return found, True


def words_at(data: bytes, at: int, many: int) -> tuple[list[bytes] | None, int, bool]:
    """So many words from there on, where they end, and whether nothing is wrong; nothing if they are cut off."""
    words: list[bytes] = []
    weight = 0
    for _ in range(many):
        end = data.find(b"\r\n", at)
        if end < 0 or end - at > MAX_LINE:
            return None, at, len(data) - at <= MAX_LINE if end < 0 else False
        line = data[at:end]
        if not re.fullmatch(rb"\$[0-9]{1,9}", line):
            return None, at, False
        weight += int(line[1:]) + 16
        if weight > MAX_BYTES:
            return None, at, False
        start = end + 2
        end = start + int(line[1:])
        if len(data) < end + 2:
            return None, at, True
        if data[end : end + 2] != b"\r\n":
            return None, at, False
        words.append(data[start:end])
        at = end + 2
    return words, at, True
