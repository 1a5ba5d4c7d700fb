"""JSON by the standard library, plus `//` comments, minus what it wrongly accepts.

`json` reads ten thousand rules in a twentieth of a second, but does not report positions. They are only needed for
error messages, so lines are found in a second, slower pass over the text.
"""

from __future__ import annotations

import json
import math
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ..pacing import with_pauses
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

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DIGITS: Final = 40
PART: Final = 256 * 1024
REMEDY: Final = "correct the JSON there; a YAML file must end in .yaml"

_STRING: Final = r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"'
_COMMENT: Final = re.compile(rf"({_STRING})|//[^\n]*+")
_TOKEN: Final = re.compile(rf"({_STRING})|[\[\]{{}},:\n]|[^\s\[\]{{}},:\"]++")


class _NumberError(ValueError):
    """A number that is valid JSON but cannot be represented."""


def read_json(text: str, name: str, *, pause: Callable[[], None]) -> Document:
    """Read one JSON document."""
    if _may_have_comments(text, pause):
        text = _without_comments(text, pause)
    has_twice = False

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal has_twice
        pause()
        made = dict(pairs)
        if len(made) != len(pairs):
            has_twice = True
        return made

    try:
        value = json.loads(
            text,
            object_pairs_hook=mapping,
            parse_int=_whole,
            parse_float=_fraction,
            parse_constant=_constant,
        )
    except _NumberError as error:
        line = _line_of(text, str(error.args[1]))
        message = f"{error.args[1][:MAX_DIGITS]} is not a usable number"
        raise RulesError([Problem(name, line, "", message, "write an ordinary number")]) from None
    except json.JSONDecodeError as error:
        message = f"this is not JSON: {error.msg.lower()} at column {error.colno}"
        raise RulesError([Problem(name, error.lineno, "", message, REMEDY)]) from None
    except RecursionError:
        raise too_deep(name, 0) from None
    if type(value) in (dict, list):
        _require_depth(value, name, pause)
    problems = _find_twice(text, name) if has_twice else ()
    return Document(name, value, problems, cache(lambda: _lines(text, pause)))


def _may_have_comments(text: str, pause: Callable[[], None]) -> bool:
    """Whether there is a double slash anywhere; searched in parts, because a text of megabytes takes a while."""
    for start in range(0, len(text), PART):
        pause()
        if text.find("//", start, start + PART + 1) >= 0:
            return True
    return False


def _without_comments(text: str, pause: Callable[[], None]) -> str:
    def kept(found: re.Match[str]) -> str:
        pause()
        return found[1] or ""

    return _COMMENT.sub(kept, text)


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _NumberError("too large", digits)
    return int(digits)


def _fraction(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _NumberError("too large", digits)
    return number


def _constant(word: str) -> NoReturn:
    raise _NumberError("not finite", word)


def _require_depth(value: Any, name: str, pause: Callable[[], None]) -> None:
    """Level by level, because a document may be nested deeper than Python's recursion limit."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in with_pauses(level, pause)
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return
    raise too_deep(name, 0)


def _line_of(text: str, number: str) -> int:
    """The line where `number` first occurs outside of a string; 0 if it does not."""
    line = 1
    for found in _TOKEN.finditer(text):
        if found[0] == "\n":
            line += 1
        elif found[0] == number:
            return line
    return 0


def _lines(text: str, pause: Callable[[], None]) -> LineTree:
    return _look(text, None, pause).lines


def _find_twice(text: str, name: str) -> tuple[Problem, ...]:
    return _look(text, name, lambda: None).problems


def _look(text: str, name: str | None, pause: Callable[[], None]) -> DocumentLines:
    """Scan a text that is known to be JSON for line numbers and, with `name`, for duplicate keys."""
    problems: list[Problem] = []
    top: list[LineTree] = []
    containers: list[Any] = [top]
    steps: list[Any] = [0]
    line = 1
    key_line = 0
    """The line of the key that waits for its value; 0 if there is none."""
    for found in _TOKEN.finditer(text):
        word = found[0]
        here = containers[-1]
        if word == "\n":
            line += 1
        elif word in ",:":
            pass
        elif word in "]}":
            containers.pop()
            steps.pop()
            pause()
        elif type(here) is dict and not key_line:
            key = json.loads(word)
            if name is not None and key in here:
                before = first_line(here[key])
                path = path_text([*steps[1:-1], key])
                problems.append(twice(name, key, path=path, first=before, again=line))
            steps[-1], key_line = key, line
        else:
            inner: Any = {} if word == "{" else [] if word == "[" else None
            at: LineTree = line if inner is None else LineBranch(key_line or line, inner)
            if type(here) is dict:
                here[steps[-1]] = key_line if inner is None else at
            else:
                steps[-1] = len(here)
                here.append(at)
            key_line = 0
            if inner is not None:
                containers.append(inner)
                steps.append(0)
    return DocumentLines(top[0], tuple(problems))
