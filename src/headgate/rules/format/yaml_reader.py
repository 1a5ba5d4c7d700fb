"""YAML, read event by event from PyYAML's parser; scalars are interpreted here, by YAML 1.2.

PyYAML's loaders follow YAML 1.1, where `no` is false, `010` is eight and `1:30` is ninety, and where aliases let a
small file expand into a large one. Its parser does none of that: it only reports brackets and scalars, with their
positions. So this module builds the values itself, in small steps between which other threads can run. Aliases, anchors
and tags are refused. Positions are only needed for error messages, so lines are found in a second pass.
"""

from __future__ import annotations

import math
import re
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from ...errors import ConfigError
from ..pacing import no_pause
from .document import (
    MAX_DEPTH,
    Document,
    DocumentLines,
    LineBranch,
    LineTree,
    first_line,
    path_text,
    too_deep,
    twice,
)
from .problems import Problem, RulesError

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
"""More than any number here needs, and far below Python's limit for conversions."""

_NOT_FINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def read_yaml(text: str, name: str, *, pause: Callable[[], None]) -> Document:
    """Read one YAML document."""
    values = _Values(name)
    _walk(text, values, pause)
    problems = _lines(text, name, no_pause).problems if values.has_twice else ()
    return Document(name, values.done, problems, cache(lambda: _lines(text, name, pause).lines))


def scalar(text: str) -> Any:
    """The value of an unquoted scalar in YAML 1.2's core schema; raises `ValueError` if JSON cannot represent it."""
    if text in CONSTANTS:
        return CONSTANTS[text]
    if text[0] not in NUMBER_STARTS:
        return text
    if _NOT_FINITE.fullmatch(text):
        raise ValueError("is not a usable number")
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


class _Builder(Protocol):
    """Builds something from the events of a document.

    `open` is the stack of open containers, outermost first.
    """

    name: str
    open: list[Any]

    def scalar(self, event: Any) -> None:
        """Called for a scalar, be it a key or a value."""

    def begin(self, event: Any, container: Any) -> None:
        """Called when a mapping or a list begins."""

    def end(self) -> None:
        """Called when the innermost container ends."""


def _walk(text: str, builder: _Builder, pause: Callable[[], None]) -> None:
    """Pass every event of the only document to `builder`, and refuse what no document may contain."""
    try:
        parser = Parser(text)
        documents = 0
        while True:
            event: Any = parser.get_event()
            kind = type(event)
            if kind is yaml.ScalarEvent:
                _require_plain(event, builder.name)
                builder.scalar(event)
            elif kind in _BEGINNINGS:
                _require_plain(event, builder.name)
                if len(builder.open) == MAX_DEPTH:
                    raise too_deep(builder.name, _line(event))
                builder.begin(event, _BEGINNINGS[kind]())
            elif kind in _ENDS:
                builder.end()
                pause()
            elif kind is yaml.StreamEndEvent:
                return
            else:
                documents += kind is yaml.DocumentStartEvent
                _require_one_document(event, documents, builder.name)
    except yaml.YAMLError as error:
        raise RulesError([_problem(error, text, builder.name)]) from None
    except UnicodeDecodeError:  # From PyYAML itself, which decodes the escapes in tags.
        found = _ESCAPED_TAG.search(text)
        line = text.count("\n", 0, found.start()) + 1 if found else 0
        message, remedy = (
            "a tag has escapes that are not UTF-8",
            "leave it out; quotes make a string",
        )
        raise RulesError([Problem(builder.name, line, "", message, remedy)]) from None


_ESCAPED_TAG: Final = re.compile(r"![^\s%]*+%")

SHARE: Final = "write the value out; put fields that all rules share under `defaults:`"
_INDENTED_BY_TAB: Final = re.compile(r" *\t")
_BEGINNINGS: Final[dict[type, Callable[[], Any]]] = {
    yaml.MappingStartEvent: dict,
    yaml.SequenceStartEvent: list,
}
_ENDS: Final = frozenset({yaml.MappingEndEvent, yaml.SequenceEndEvent})


def _require_one_document(event: Any, documents: int, name: str) -> None:
    """Refuse a second document, and aliases, which are the only events left."""
    if documents > 1:
        raise _refused(event, name, "a second document begins", "keep one per file")
    if type(event) is yaml.AliasEvent:
        raise _refused(event, name, f"*{event.anchor} is an alias, which is not supported", SHARE)


def _require_plain(event: Any, name: str) -> None:
    """Refuse YAML features beyond plain values."""
    if event.anchor is not None:
        raise _refused(event, name, f"&{event.anchor} is an anchor, which is not supported", SHARE)
    if event.tag is not None:
        tag = event.tag.replace("tag:yaml.org,2002:", "!!")
        raise _refused(event, name, f"{tag} is a tag", "leave it out; quotes make a string")


class _Values:
    """Builds the values."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.open: list[Any] = []
        self.done: Any = None
        self.has_twice = False
        self._keys: list[str | None] = []
        """For each open container, the key that waits for its value."""

    def scalar(self, event: Any) -> None:
        text: str = event.value
        if self.open and self._keys[-1] is None and type(self.open[-1]) is dict:
            if text in self.open[-1]:
                self.has_twice = True
            self._keys[-1] = text
            return
        if not event.implicit[0]:  # It is quoted, or a block scalar.
            self._put(text)
            return
        try:
            self._put(scalar(text))
        except ValueError as error:
            shown = text if len(text) <= MAX_DIGITS else text[:MAX_DIGITS] + "…"
            remedy = "write an ordinary number, or put it in quotes if it is a string"
            raise _refused(event, self.name, f"{shown} {error}", remedy) from None

    def begin(self, event: Any, container: Any) -> None:
        if self.open and self._keys[-1] is None and type(self.open[-1]) is dict:
            message = "a mapping or a list is used as a key"
            raise _refused(event, self.name, message, "a key must be a string")
        self.open.append(container)
        self._keys.append(None)

    def end(self) -> None:
        self._keys.pop()
        self._put(self.open.pop())

    def _put(self, value: Any) -> None:
        """Add a finished value to the innermost container, or make it the document."""
        if not self.open:
            self.done = value
        elif type(here := self.open[-1]) is list:
            here.append(value)
        else:
            here[self._keys[-1]] = value
            self._keys[-1] = None


class _Lines:
    """Records the lines of a document that was read before, and its duplicate keys."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.open: list[Any] = []
        self.tree: LineTree = 1
        self.problems: list[Problem] = []
        self._steps: list[Any] = []
        self._key_line = 0
        """The line of the key that waits for its value; 0 if there is none."""

    def scalar(self, event: Any) -> None:
        line = _line(event)
        if self.open and type(self.open[-1]) is dict and not self._key_line:
            self._key(event.value, line)
        else:
            self._put(self._key_line or line)

    def begin(self, event: Any, container: Any) -> None:
        self._put(LineBranch(self._key_line or _line(event), container))
        self.open.append(container)
        self._steps.append(0)

    def end(self) -> None:
        self.open.pop()
        self._steps.pop()

    def _key(self, key: str, line: int) -> None:
        before = self.open[-1].get(key)
        self._steps[-1], self._key_line = key, line
        if before is not None:
            path, first = path_text(self._steps), first_line(before)
            self.problems.append(twice(self.name, key, path=path, first=first, again=line))

    def _put(self, lines: LineTree) -> None:
        if not self.open:
            self.tree = lines
        elif type(here := self.open[-1]) is list:
            self._steps[-1] = len(here)
            here.append(lines)
        else:
            here[self._steps[-1]] = lines
        self._key_line = 0


def _lines(text: str, name: str, pause: Callable[[], None]) -> DocumentLines:
    lines = _Lines(name)
    _walk(text, lines, pause)
    return DocumentLines(lines.tree, tuple(lines.problems))


def _line(event: Any) -> int:
    line: int = event.start_mark.line
    return line + 1


def _refused(event: Any, name: str, message: str, remedy: str) -> RulesError:
    return RulesError([Problem(name, _line(event), "", message, remedy)])


def _problem(error: yaml.YAMLError, text: str, name: str) -> Problem:
    """PyYAML's message, in one line."""
    remedy = "correct the YAML there; quotes around a string often help"
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = 0 if mark is None else mark.line + 1
        if line and _INDENTED_BY_TAB.match([*text.split("\n"), ""][line - 1]):
            message = "there is a tab before the first word, which YAML does not allow"
            return Problem(name, line, "", message, "indent with spaces")
        given = ", ".join(part for part in (error.context, error.problem) if part)
        return Problem(name, line, "", f"this is not YAML: {given}", remedy)
    # The position of a character that is not allowed in YAML.
    position = getattr(error, "position", 0)
    reason = getattr(error, "reason", str(error))
    line = text.count("\n", 0, position) + 1
    return Problem(name, line, "", f"this is not YAML: {reason}", "remove that character")
