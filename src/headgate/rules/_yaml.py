"""YAML, taken event by event from PyYAML's parser; what a scalar means is decided here, by YAML 1.2.

PyYAML's loaders follow YAML 1.1, where `no` is false, `010` is eight and `1:30` is ninety, and where an alias lets a small
file unfold into a large one. Its parser knows nothing of that: it tells which brackets and texts there are, and where.
So this file puts the values together itself, in small steps between which other threads can run. Aliases,
anchors and tags are refused.
"""

from __future__ import annotations

import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError
from .document import MAX_DEPTH, Document, LineTree, path_text, too_deep, twice
from .problem import Problem, RulesError

try:
    import yaml
except ImportError as error:
    raise ConfigError(
        "YAML needs PyYAML: pip install 'headgate[rules]', or write the rules as JSON"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    from yaml._yaml import CParser as Parser
except ImportError:  # PyYAML was built without libyaml: the same events, more slowly.
    from yaml import SafeLoader as Parser  # type: ignore[assignment]

CONSTANTS: Final = {
    "": None,
    "~": None,
    **dict.fromkeys(("null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
NUMBER_STARTS: Final = frozenset("0123456789+-.")
MAX_DIGITS: Final = 40
"""More than any number here needs, and far below where Python refuses to convert."""

_NOT_FINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def read_yaml(text: str, name: str, *, pause: Callable[[], None]) -> Document:
    """Read one YAML document."""
    reader = _Reader(name)
    try:
        reader.read(Parser(text), pause)
    except yaml.YAMLError as error:
        raise RulesError([_problem(error, text, name)]) from None
    lines = reader.lines
    return Document(name, reader.value, tuple(reader.problems), lambda: lines)


def scalar(text: str) -> Any:
    """What an unquoted scalar means in YAML 1.2's core schema; raises `ValueError` for what JSON cannot say."""
    if text in CONSTANTS:
        return CONSTANTS[text]
    if text[0] not in NUMBER_STARTS:
        return text
    if _NOT_FINITE.fullmatch(text):
        raise ValueError("is not a number that can be counted with")
    for form, read in _NUMBERS:
        if form.fullmatch(text):
            if len(text) > MAX_DIGITS:
                raise ValueError("has too many digits")
            return read(text)
    return text


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("is too large a number")
    return number


_NUMBERS: Final[tuple[tuple[re.Pattern[str], Callable[[str], float]], ...]] = (
    (re.compile(r"[-+]?[0-9]+"), int),  # `010` is ten.
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), _finite),
    (re.compile(r"0o[0-7]+"), partial(int, base=0)),
    (re.compile(r"0x[0-9a-fA-F]+"), partial(int, base=0)),
)


class _Reader:
    """Puts values together from events. `stack` holds the containers that are still open, the outermost first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.value: Any = None
        self.lines: LineTree = 1
        self.problems: list[Problem] = []
        self.stack: list[_Open] = []

    def read(self, parser: Parser, pause: Callable[[], None]) -> None:
        """Take every event of the one document."""
        documents = 0
        while True:
            event: Any = parser.get_event()
            kind = type(event)
            if kind is yaml.ScalarEvent:
                self._scalar(event)
            elif kind is yaml.MappingStartEvent:
                self._open(_Open({}, {}, event.start_mark.line + 1), event)
            elif kind is yaml.SequenceStartEvent:
                self._open(_Open([], [], event.start_mark.line + 1), event)
            elif kind in (yaml.MappingEndEvent, yaml.SequenceEndEvent):
                done = self.stack.pop()
                self._put(done.value, (done.line, done.lines), done.line)
                pause()
            elif kind is yaml.AliasEvent:
                raise self._refused(event, f"*{event.anchor} is an alias", "write the value out")
            elif kind is yaml.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    raise self._refused(event, "a second document begins", "keep one in a file")
            elif kind is yaml.StreamEndEvent:
                return

    def _scalar(self, event: Any) -> None:
        text: str = event.value
        line = event.start_mark.line + 1
        if event.tag is not None or event.anchor is not None:
            self._plain_only(event)
        if self.stack and self.stack[-1].wants_key:
            self._key(text, line)
            return
        value: Any = text
        if event.implicit[0]:
            try:
                value = scalar(text)
            except ValueError as error:
                shown = text if len(text) <= MAX_DIGITS else text[:MAX_DIGITS] + "…"
                remedy = "write one with few digits, or put it in quotes if it is a text"
                raise self._refused(event, f"{shown} {error}", remedy) from None
        self._put(value, line, line)

    def _key(self, text: str, line: int) -> None:
        here = self.stack[-1]
        if text in here.value:
            before = here.lines[text]
            first = before if isinstance(before, int) else before[0]
            path = path_text([*(one.key for one in self.stack[:-1]), text])
            self.problems.append(twice(self.name, text, path=path, first=first, again=line))
        here.key, here.key_line, here.wants_key = text, line, False

    def _put(self, value: Any, lines: LineTree, line: int) -> None:
        """Give a finished value its place in what is open, or make it the document."""
        if not self.stack:
            self.value, self.lines = value, lines
            return
        here = self.stack[-1]
        if here.is_list:
            here.value.append(value)
            here.lines.append(lines)
            here.key = len(here.value)
        elif here.wants_key:
            message = "a mapping or a list is used as a key"
            raise RulesError([Problem(self.name, line, "", message, "a key is a text")])
        else:
            here.value[here.key] = value
            here.lines[here.key] = (
                here.key_line if isinstance(lines, int) else (here.key_line, lines[1])
            )
            here.wants_key = True

    def _open(self, container: _Open, event: Any) -> None:
        if event.tag is not None or event.anchor is not None:
            self._plain_only(event)
        if len(self.stack) == MAX_DEPTH:
            raise too_deep(self.name, container.line)
        self.stack.append(container)

    def _plain_only(self, event: Any) -> None:
        if event.anchor is not None:
            raise self._refused(event, f"&{event.anchor} is an anchor", "write the value out")
        tag = event.tag.replace("tag:yaml.org,2002:", "!!")
        raise self._refused(event, f"{tag} is a tag", "leave it out; quotes make a text")

    def _refused(self, event: Any, message: str, remedy: str) -> RulesError:
        return RulesError([Problem(self.name, event.start_mark.line + 1, "", message, remedy)])


class _Open:
    """A mapping or a list that has begun and not yet ended."""

    __slots__ = ("is_list", "key", "key_line", "line", "lines", "value", "wants_key")

    def __init__(self, value: Any, lines: Any, line: int) -> None:
        self.value = value
        self.lines = lines
        self.line = line
        self.is_list = type(value) is list
        self.wants_key = not self.is_list
        self.key: Any = 0
        self.key_line = 0


def _problem(error: yaml.YAMLError, text: str, name: str) -> Problem:
    """What PyYAML says, in one line."""
    remedy = "correct the YAML there; quotes around a text often help"
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part)
        return Problem(name, mark.line + 1 if mark else 0, "", f"this is not YAML: {said}", remedy)
    position = getattr(error, "position", 0)  # Of a character that no YAML may hold.
    reason = getattr(error, "reason", str(error))
    line = text.count("\n", 0, position) + 1
    return Problem(name, line, "", f"this is not YAML: {reason}", "remove that character")
