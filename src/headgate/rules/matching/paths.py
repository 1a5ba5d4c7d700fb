"""Paths in canonical form.

A client can spell one path in many ways, and if a rule does not recognise a spelling, the client has no limit. So a
path is brought into canonical form before any rule sees it, and that form is what traces show:

- it begins at the first `/` after scheme and host, if present, and ends before the first `?` or `#`;
- escapes that are not needed are decoded, once (`log%69n`, `%40`); the others get upper-case digits (`%2f` becomes
  `%2F`), and characters that need an escape get one (a backslash becomes `%5C`);
- parameters are dropped (`/a;x=1/b` is `/a/b`), runs of slashes become one, dot segments are resolved (RFC 3986,
  5.2.4);
- a trailing slash is dropped: otherwise `/login/` would have a limit of its own beside `/login`.

Case is kept, and characters that merely look alike stay different: they may be different resources.

**An escaped slash and a backslash have two readings.** To one server `/x%2F..%2Flogin` is a single segment with a
strange name, to another it is `/login`. Package registries use `%2F` in legitimate paths, so it cannot just be
refused. The canonical form takes them as part of a name; `readings` also returns the path with slashes in their
place, and rules are matched against each. The same goes for what `..` removes: `/login//..` and `/login/;x/..` are
`/` to some servers, and `/login` to those that count the empty segment, or the one that has only a parameter.

Paths that cannot be read are refused: control characters, broken escapes, bytes that are not UTF-8 (overlong ones
included), more than 8 KB, more than 256 segments (in a path with several readings: before dots are resolved).
By default such a request is denied.

`canonical_path` is idempotent: `canonical_path(canonical_path(x)) == canonical_path(x)`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ...errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_PATH_BYTES: Final = 8_192
MAX_SEGMENTS: Final = 256

_ITSELF: Final = "!$&'()*+,=:@"
"""What may stand in a segment besides letters, digits and `-._~`; `;` begins a parameter."""
_CANONICAL: Final = re.compile(rf"[/A-Za-z0-9\-._~{re.escape(_ITSELF)}]++")
_AUTHORITY: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*+://[^/?#]*+")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_PARAMETERS: Final = re.compile(r";[^/]*+")
_PAIR: Final = re.compile(r"[0-9A-Fa-f]{2}")
_HIGH: Final = re.compile(r"%[89A-F]")
_UTF_8: Final = re.compile(
    r"""(?: [^%]++ | %[0-7].                       # RFC 3629, section 4, in escapes
          | %(?:C[2-9A-F]|D.)           %[89AB].
          | %E0  %[AB].                 %[89AB].
          | %E(?:[1-9A-CEF])  %[89AB].  %[89AB].
          | %ED  %[89].                 %[89AB].
          | %F0  %[9AB].      %[89AB].  %[89AB].
          | %F[1-3]  %[89AB]. %[89AB].  %[89AB].
          | %F4  %8.          %[89AB].  %[89AB].
        )*+""",
    re.VERBOSE,
)


SLASHES: Final = (("%2F",), ("%5C",), ("%2F", "%5C"))
"""What servers may take for slashes, besides those: escaped ones, backslashes, or both."""

_PLAIN: Final = bytes(
    code for code in range(128) if chr(code).isalnum() or chr(code) in f"-._~/;%{_ITSELF}"
)
"""What a path is spelled with; every other byte is escaped."""
_SPELLINGS: Final = [chr(code) if code in _PLAIN else f"%{code:02X}" for code in range(256)]


class BadPathError(UsageError):
    """An invalid path. An HTTP front end may answer 400."""


def _escapes() -> dict[str, str]:
    """What the two digits after a percent sign become, also with a slash behind them.

    Those that are refused are not there.
    """
    table: dict[str, str] = {}
    digits = "0123456789abcdefABCDEF"
    for pair in (high + low for high in digits for low in digits):
        char = chr(int(pair, 16))
        if char < " " or char == "\x7f":
            continue
        alone = char < "\x80" and (char.isalnum() or char in "-._~" or char in _ITSELF)
        table[pair] = char if alone else f"%{pair.upper()}"
        table[f"{pair}/"] = f"{table[pair]}/"
    return table


_ESCAPES: Final = _escapes()


def canonical_path(raw: str) -> str:
    """The one spelling of a path; raises `BadPathError` for what has none.

    >>> canonical_path("/api//v1/./x/../log%69n/?next=/")
    '/api/v1/login'
    """
    return raw if is_canonical(raw) else readings(raw)[0]


def is_canonical(raw: str) -> bool:
    """Whether a path is in its one spelling already, and has no other reading: most are.

    One that is not may be in it, too.
    """
    return (
        len(raw) <= MAX_PATH_BYTES
        and _CANONICAL.fullmatch(raw) is not None
        and raw[0] == "/"
        and raw[-1] != "/"
        and "/." not in raw
        and "//" not in raw
        and (len(raw) <= MAX_SEGMENTS or raw.count("/") <= MAX_SEGMENTS)
    )


def readings(raw: str) -> tuple[str, ...]:
    """The one spelling of a path, and its other readings if escaped slashes or backslashes count as slashes.

    Raises `BadPathError` for a path that cannot be read, or is too deep in one of its readings.

    >>> readings("/x%2f..%2flogin")
    ('/x%2F..%2Flogin', '/login')
    """
    if len(raw) > MAX_PATH_BYTES:
        raise BadPathError(f"a path has at most {MAX_PATH_BYTES} bytes, not {len(raw)}")
    if raw in {"/", "*"}:  # The star is asked of the whole server, as in `OPTIONS *`.
        return (raw,)
    path = _spelled(_path_of(raw))
    _require_bounded_depth(path)
    found = [*_walked(path)]
    for marks in SLASHES:
        if all(mark in path for mark in marks):
            reading = path
            for mark in marks:
                reading = reading.replace(mark, "/")
            found += _walked(reading)
    return tuple(dict.fromkeys(map(_bounded, found)))


def _walked(path: str) -> Iterator[str]:
    """Where a path leads: with what is nothing to us gone before its dots are walked, or only afterwards."""
    yield _resolved(path)
    if ".." in path and ("//" in path or ";" in path):
        yield _resolved_late(_bounded(path))


def _require_bounded_depth(path: str) -> None:
    """Refuse a path that is too deep if escaped slashes and backslashes count as slashes, before any other work."""
    marks = path.count("%2F") + path.count("%5C")
    if marks and path.count("/") + marks > MAX_SEGMENTS:
        depth = path.count("/") + marks
        raise BadPathError(f"a path has at most {MAX_SEGMENTS} segments, not {depth}")


def _bounded(path: str) -> str:
    if len(path) > MAX_PATH_BYTES:  # It had no slash in front, and has one now.
        raise BadPathError(f"a path has at most {MAX_PATH_BYTES} bytes, not {len(path)}")
    if len(path) > MAX_SEGMENTS and path.count("/") > MAX_SEGMENTS:
        raise BadPathError(f"a path has at most {MAX_SEGMENTS} segments, not {path.count('/')}")
    return path


def _path_of(raw: str) -> str:
    """The path of a request's target, without what stands before and after it."""
    authority = _AUTHORITY.match(raw)
    if authority is not None:
        raw = raw[authority.end() :]
    return raw.partition("?")[0].partition("#")[0]


def _spelled(path: str) -> str:
    """The path with every character in its one spelling."""
    if not path.isprintable() and _CONTROL.search(path):
        raise BadPathError("a path may not have control characters")
    if "%" in path:
        path = _decoded(path)
    try:
        data = path.encode()
    except UnicodeEncodeError:
        raise BadPathError("the path has half a surrogate pair and is not valid text") from None
    others = len(data.translate(None, _PLAIN))
    size = len(data) + 2 * others
    if size > MAX_PATH_BYTES:  # Before the work of escaping them.
        raise BadPathError(f"a path has at most {MAX_PATH_BYTES} bytes, not {size}")
    return "".join(map(_SPELLINGS.__getitem__, data)) if others else path


def _decoded(path: str) -> str:
    """Escapes that are not needed decoded, the others in capitals."""
    first, *others = path.split("%")
    try:
        path = first + "".join(
            [
                _ESCAPES[other] if other in _ESCAPES else _ESCAPES[other[:2]] + other[2:]
                for other in others
            ]
        )
    except KeyError as unknown:
        (pair,) = unknown.args
        if _PAIR.fullmatch(pair):
            raise BadPathError(
                f"a path may not have control characters, and %{pair} is one"
            ) from None
        raise BadPathError(
            f"{'%' + pair!a} is not a valid escape; write a percent sign as %25"
        ) from None
    if _HIGH.search(path) and not _UTF_8.fullmatch(path):
        raise BadPathError("the escapes in the path are not UTF-8")
    return path


def _resolved_late(path: str) -> str:
    """As `_resolved`, but empty segments and parameters are there while dots are walked, and `..;x` is a name."""
    kept: list[str] = []
    for segment in path.removeprefix("/").split("/"):
        if segment == "..":
            if kept:
                kept.pop()
        elif segment != ".":
            kept.append(segment)
    names = [segment.partition(";")[0] if ";" in segment else segment for segment in kept]
    names = [
        kept[at].replace(";", "%3B") if name in {".", ".."} else name
        for at, name in enumerate(names)
        if name
    ]
    return "/" + "/".join(names)


def _resolved(path: str) -> str:
    """The path without parameters, empty segments and dot segments."""
    if ";" in path:
        path = "".join(_PARAMETERS.split(path))
    while "//" in path:  # Each round halves every run of them.
        path = path.replace("//", "/")
    path = "/" + path.strip("/")
    if "/." not in path:
        return path
    kept: list[str] = []
    for segment in path[1:].split("/"):
        if segment == "..":
            if kept:
                kept.pop()
        elif segment != ".":
            kept.append(segment)
    return "/" + "/".join(kept)
