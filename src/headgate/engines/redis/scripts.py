"""The Lua side: one file per algorithm and one per command, assembled once and named by a hash.

Servers with functions (Redis 7, Valkey) store the code as a library, and a call costs only the decision. Other servers,
and those that do not allow loading a library, run it as a script, which defines its functions again on every call.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final, TypeAlias

ALGORITHMS: Final = (
    "fixed_window",
    "sliding_window",
    "sliding_log",
    "token_bucket",
    "exponential_backoff",
    "adaptive",
    "concurrency",
)
"""In the order of `ORDER` in prelude.lua: a step refers to its algorithm by this index, from 1."""
COMMANDS: Final = ("take", "decide", "settle", "leave_line", "slots", "reset", "limits")


@dataclass(frozen=True, slots=True)
class Script:
    """One command: its text and hash as a script, and its function in the library."""

    name: str
    text: bytes
    sha: bytes
    function: bytes = b""


Words: TypeAlias = tuple[bytes, bytes]
"""The first words of a call: the command that runs a script, and the script's name."""


class Dialect:
    """How commands are called: as functions, until a server turns out not to support or allow them."""

    def __init__(self) -> None:
        self.functions = True

    def words(self, script: Script) -> Words:
        """The first words of a call of this command."""
        return (b"FCALL", script.function) if self.functions else (b"EVALSHA", script.sha)


@cache
def script(name: str) -> Script:
    """The command `lua/<name>.lua`, with everything it needs."""
    text = f"{_text(name)}\nreturn commands.{name}(KEYS, ARGV)\n".encode()
    # Redis identifies scripts by this digest.
    sha = sha1(text, usedforsecurity=False).hexdigest()
    return Script(name, text, sha.encode(), f"{_library_name()}_{name}".encode())


@cache
def library() -> bytes:
    """The text for FUNCTION LOAD: all commands."""
    name = _library_name()
    return (
        f"#!lua name={name}\nlocal NAME = '{name}'\nlocal function library()\n{_text(*COMMANDS)}\n"
        f"return commands\nend\n{_file('library')}"
    ).encode()


@cache
def _library_name() -> str:
    text = _text(*COMMANDS) + _file("library")
    return f"headgate_{sha1(text.encode(), usedforsecurity=False).hexdigest()[:16]}"


_SHARED: Final = ("prelude", *ALGORITHMS, "wire", "watch", "line", "take")


def _text(*commands: str) -> str:
    # A dict to drop duplicates: `take` is shared by every command.
    return "\n".join(map(_file, dict.fromkeys((*_SHARED, *commands))))


@cache
def _file(name: str) -> str:
    return (files(__package__) / "lua" / f"{name}.lua").read_text("utf-8")
