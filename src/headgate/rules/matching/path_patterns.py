"""Path patterns: the syntax in which a rule describes paths.

    /users/7        this path                       /users/{id}     one segment, which the identifier may use
    /users/*        everything below /users         /users/*/posts  exactly one segment in between
    /**/admin       any number of segments, none included           *   any path at all

A star at the end stands for one or more segments, as rules have always had it; `/users/**` also means `/users` itself.
Stars and names stand for whole segments. Fixed segments are brought into the one spelling of a path first, so
`/caf%C3%A9` and `/café` are the same pattern.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from ...errors import UsageError
from .paths import BadPathError, canonical_path

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind: TypeAlias = Literal["fixed", "one", "some", "any"]
"""A fixed segment, exactly one, one or more (at the end), any number."""

MAX_PATTERN: Final = 512
MAX_GAPS: Final = 4
"""How often `**` may stand in a pattern. Each is a state that a request walks with."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_~\-]++")
_REGEX: Final = re.compile(r"[\^\[\]|]|\$$|\.[*+]|\\[a-zA-Z]|\)[*+?]|\(\?")
INSTEAD: Final = (
    "'*' matches one segment, at the end one or more, '**' any number, "
    "and '{name}' one that identifiers can use"
)
_NAME: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]{0,63})\}")


class PatternError(UsageError):
    """A path pattern that cannot be read."""


class Piece(NamedTuple):
    """What a pattern says about one segment, or about a run of them."""

    kind: Kind
    text: str = ""
    """The fixed segment, or the name of one that is captured."""


ONE: Final = Piece("one")
ANY: Final = Piece("any")


@lru_cache(maxsize=16_384)
def pieces_of(pattern: str) -> tuple[Piece, ...]:
    """Read a pattern; raises `PatternError`.

    >>> pieces_of("/users/{id}/*")
    (Piece(kind='fixed', text='users'), Piece(kind='one', text='id'), Piece(kind='some', text=''))
    """
    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"a path pattern may have at most {MAX_PATTERN} characters")
    if pattern in {"*", "**"}:
        return (ANY,)
    if _looks_like_a_regex(pattern):
        raise PatternError(f"{pattern!r} looks like a regular expression; {INSTEAD}")
    if not pattern.startswith("/"):
        raise PatternError(f"{pattern!r} does not begin with '/'; write {'/' + pattern!r}")
    words = [word for word in pattern.split("/") if word]
    pieces = [_piece(word) for word in words]
    if words and words[-1] == "*":
        pieces[-1] = Piece("some")
    if "{" in pattern:
        names = [piece.text for piece in pieces if piece.kind == "one" and piece.text]
        if len(set(names)) < len(names):
            raise PatternError(f"{pattern!r} gives two segments the same name; use different names")
    if "**" in pattern:
        pieces = [
            piece for at, piece in enumerate(pieces) if not (piece == ANY == pieces[at - 1] and at)
        ]  # Any number of segments after any number of them is any number.
        if pieces.count(ANY) > MAX_GAPS:
            raise PatternError(
                f"{pattern!r} has '**' more than {MAX_GAPS} times; write more fixed segments"
            )
    return tuple(pieces)


def _looks_like_a_regex(pattern: str) -> bool:
    r"""Whether somebody has written `^/a/.*$`, `/[a-z]+/`, `/(a|b)` or `/\d+`.

    Such characters are escaped in a path that means them.
    """
    return _REGEX.search(pattern) is not None


def _piece(word: str) -> Piece:
    if _PLAIN.fullmatch(word):
        return Piece("fixed", word)
    if word == "**":
        return ANY
    if word == "*":
        return ONE
    named = _NAME.fullmatch(word)
    if named is not None:
        return Piece("one", named[1])
    if any(char in word for char in "*{}"):
        raise PatternError(
            f"{word!r} is not a path segment; '*', '**' and '{{name}}' match whole segments, "
            "so write one of them alone"
        )
    if any(char in word for char in "?#;\\"):
        raise PatternError(
            f"{word!r} is not a path segment; '?', '#', ';' and '\\' are not part of one, so leave them out"
        )
    try:
        fixed = canonical_path("/" + word)[1:]
    except BadPathError as error:
        raise PatternError(f"{word!r} is not a path segment: {error}") from None
    if "%2F" in fixed or "%5C" in fixed:
        raise PatternError(
            f"{word!r} can be read in two ways, and rules see both; "
            "write '/', or name the segment, as in {name}"
        )
    if not fixed:
        raise PatternError(f"{word!r} is removed from paths; leave it out")
    return Piece("fixed", fixed)


def fits(pieces: Sequence[Piece], segments: Sequence[str]) -> bool:
    """Whether a path fits a pattern: slow, obvious, and right. `path_trie.py` does it for all patterns at once."""
    walked = {0}  # How many segments the pieces so far can stand for.
    for kind, text in pieces:
        if kind == "any":
            walked = set(range(min(walked), len(segments) + 1)) if walked else walked
        elif kind == "some":
            walked = {len(segments)} if walked and min(walked) < len(segments) else set()
        else:
            walked = {
                done + 1
                for done in walked
                if done < len(segments) and (kind == "one" or segments[done] == text)
            }
    return len(segments) in walked


def capture(pieces: Sequence[Piece], name: str, segments: Sequence[str]) -> str:
    """The segment that `{name}` stands for, in a path that fits; of several that would do, the first."""
    at = next(i for i, piece in enumerate(pieces) if piece == ("one", name))
    before, after = pieces[:at], pieces[at + 1 :]
    if all(kind != "any" for kind, _ in before):
        return segments[at]
    return next(
        segment
        for i, segment in enumerate(segments)
        if fits(before, segments[:i]) and fits(after, segments[i + 1 :])
    )
