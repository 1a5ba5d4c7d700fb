"""The scripts: one Lua file per algorithm, put together and named by their hash."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final

ALGORITHMS: Final = (
    "fixed_window",
    "sliding_window",
    "sliding_log",
    "token_bucket",
    "exponential_backoff",
    "adaptive",
    "concurrency",
)
"""In the order of `ORDER` in wire.lua: a step names its algorithm by its place, counted from 1."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text, and the name by which a server knows it once it has been loaded."""

    name: str
    text: bytes
    sha: bytes


@cache
def script(name: str) -> Script:
    """The script `lua/<name>.lua`, with everything it stands on."""
    folder = files(__package__) / "lua"
    parts = ["prelude", *ALGORITHMS, "wire", name]
    text = "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in parts).encode()
    digest = sha1(text, usedforsecurity=False).hexdigest()  # The name that Redis itself gives it.
    return Script(name, text, digest.encode())
