"""From bytes to plain values with line numbers: JSON with `//` comments, or YAML 1.2, within bounds.

Both readers produce the same JSON-like values, so that nothing after them depends on the format. Both refuse text that
is not UTF-8, numbers that JSON cannot represent, duplicate keys, nesting deeper than `MAX_DEPTH`, and documents larger
than `MAX_BYTES`. Nothing is ever constructed from a tag, and nothing is expanded, so a small file stays small.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from .problems import Problem, RulesError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_BYTES: Final = 8 * 1024 * 1024
"""For one document. Ten thousand ordinary rules take about 4 MB as YAML or indented JSON."""
MAX_DEPTH: Final = 32

Step: TypeAlias = str | int
LineTree: TypeAlias = "int | LineBranch"
"""The line of a value, and for a mapping or a list those of its content. A value in a mapping has its key's line."""


class LineBranch(NamedTuple):
    """A mapping or a list: its own line, and those of its content."""

    line: int
    inside: dict[str, LineTree] | list[LineTree]


class DocumentLines(NamedTuple):
    """The lines of a document, and its duplicate keys."""

    lines: LineTree
    problems: tuple[Problem, ...]


def first_line(at: LineTree) -> int:
    """The line where a value begins."""
    return at if isinstance(at, int) else at.line


_SOMETHING: Final = re.compile(r"//|\S")
_FOREIGN: Final = (
    (codecs.BOM_UTF32_LE, "UTF-32"),  # Before UTF-16, whose mark is a prefix of it.
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
    (codecs.BOM_UTF8, "UTF-8 with a byte order mark"),
)


@dataclass(frozen=True, slots=True)
class Document:
    """The content of one file or node."""

    name: str
    value: Any
    """None, booleans, numbers, strings, lists, and dicts with string keys."""
    problems: tuple[Problem, ...]
    """Errors after which reading continues: duplicate keys."""
    find_lines: Callable[[], LineTree]
    """Expensive, so only called when there is something to report."""

    def line(self, path: Sequence[Step]) -> int:
        """The line of the value at `path`, or of the nearest enclosing value that exists."""
        at = self.find_lines()
        for step in path:
            if isinstance(at, int):
                break
            try:
                at = at.inside[step]  # type: ignore[index]  # a step of the wrong kind is caught below
            except (KeyError, IndexError, TypeError):
                break
        return first_line(at)


def read_document(data: bytes | str, name: str, *, pause: Callable[[], None]) -> Document:
    """Read JSON or YAML, according to the extension of `name`, or else the first character.

    Raises `RulesError` if it cannot be read at all.
    """
    text = _decoded(data, name)
    pause()
    found = _SOMETHING.search(text)
    if found is None:
        raise RulesError([Problem(name, 0, "", "it is empty", "write at least one rule")])
    lower = name.lower()
    if lower.endswith(".json"):
        is_json = True
    elif lower.endswith((".yaml", ".yml")):
        is_json = False
    else:
        is_json = found[0] in {"{", "[", "//"}
    if is_json:
        from .json_reader import read_json  # noqa: PLC0415 - only one of the two is needed

        return read_json(text, name, pause=pause)
    from .yaml_reader import read_yaml  # noqa: PLC0415 - PyYAML is only needed for YAML

    return read_yaml(text, name, pause=pause)


def _decoded(data: bytes | str, name: str) -> str:
    def refuse(message: str, remedy: str, line: int = 0) -> RulesError:
        return RulesError([Problem(name, line, "", message, remedy)])

    if len(data) > MAX_BYTES:
        raise refuse(
            f"it has {len(data)} bytes, but the limit is {MAX_BYTES}", "split it into several"
        )
    if isinstance(data, str):
        text = data
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise refuse(
                f"{text[error.start]!a} is half a surrogate pair",
                "write it out as UTF-8",
                text.count("\n", 0, error.start) + 1,
            ) from None
    else:
        for mark, encoding in _FOREIGN:
            if data.startswith(mark):
                raise refuse(f"it is {encoding}", "save it as plain UTF-8")
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise refuse(
                f"byte {data[error.start]:#04x} is not UTF-8: the file is binary or has another encoding",
                "save it as UTF-8",
                line,
            ) from None
    nul = text.find("\0")
    if nul >= 0:
        raise refuse(
            "it has a NUL character: the file is binary or has another encoding",
            "save it as UTF-8",
            text.count("\n", 0, nul) + 1,
        )
    return text


def twice(name: str, key: str, *, path: str, first: int, again: int) -> Problem:
    """The problem of a duplicate key."""
    lines = f"lines {first} and {again}" if first != again else f"line {again}, twice"
    return Problem(name, again, path, f"the key {key!r} is on {lines}", "keep one of them")


def too_deep(name: str, line: int) -> RulesError:
    """The problem of a document that is nested too deeply."""
    message = f"it is nested deeper than {MAX_DEPTH} levels"
    return RulesError([Problem(name, line, "", message, "no rule needs that; flatten it")])


def path_text(path: Sequence[Step]) -> str:
    """A path in readable form: `rules[3].match.ip_subnet`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.isidentifier():
            text += f".{step}" if text else step
        else:
            text += f"[{step!r}]"
    return text
