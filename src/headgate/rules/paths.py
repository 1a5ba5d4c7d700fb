"""One path, one spelling: what every trick with slashes, dots and percent signs comes down to.

A client may write one path in a thousand ways, and whoever spells it so that a rule does not see it has no limit. So
a path is brought into one form before any rule looks at it, and that form is what traces show:

- it begins at the first `/` after scheme and host, if those are there, and ends before the first `?` or `#`;
- escapes of characters that may stand for themselves in a path are decoded, once (`log%69n`, `%40`); all others are kept
  with capital digits (`%2f` never gets here, `%3b` becomes `%3B`), and what must not stand for itself is escaped;
- parameters are cut (`/a;x=1/b` is `/a/b`), runs of slashes are one, dot segments are walked (RFC 3986, 5.2.4);
- a slash at the end is dropped: `/login/` is `/login`, so that nobody doubles an allowance with it.

Letters keep their case, and a letter that only looks like another is another one: two resources may differ by that. What
cannot be read in one way only is refused: escaped slashes and backslashes, control characters, broken escapes, bytes
that are no UTF-8 (overlong ones among them), and what is longer than 8 KB or deeper than 256 segments. A rule with a
path pattern does not match such a request; rules without one still do.

The form is its own form: `canonical_path(canonical_path(x)) == canonical_path(x)`.
"""

from __future__ import annotations

import re
from typing import Final

from ..errors import UsageError

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


_PLAIN: Final = bytes(
    code for code in range(128) if chr(code).isalnum() or chr(code) in f"-._~/;%{_ITSELF}"
)
"""What a path is spelled with; every other byte is escaped."""
_SPELLINGS: Final = [chr(code) if code in _PLAIN else f"%{code:02X}" for code in range(256)]


class BadPathError(UsageError):
    """A path that could be read in more than one way, or in none. A front door may answer 400."""


def _escapes() -> dict[str, str]:
    """What the two digits after a percent sign become, also with a slash behind them; those that are refused are not there."""
    table: dict[str, str] = {}
    digits = "0123456789abcdefABCDEF"
    for pair in (high + low for high in digits for low in digits):
        char = chr(int(pair, 16))
        if char < " " or char in "\x7f/\\":
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
    if len(raw) > MAX_PATH_BYTES:
        raise BadPathError(f"a path has at most {MAX_PATH_BYTES} bytes, not {len(raw)}")
    if (
        _CANONICAL.fullmatch(raw)  # The usual case: nothing to do.
        and raw[0] == "/"
        and raw[-1] != "/"
        and "/." not in raw
        and "//" not in raw
    ):
        path = raw
    elif raw in {"/", "*"}:  # The star is asked of the whole server, as in `OPTIONS *`.
        return raw
    else:
        path = _resolved(_spelled(_path_of(raw)))
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
    if "\\" in path or (not path.isprintable() and _CONTROL.search(path)):
        raise BadPathError("a path has no backslashes and no control characters")
    if "%" in path:
        path = _decoded(path)
    try:
        data = path.encode()
    except UnicodeEncodeError:
        raise BadPathError("a path is text; this one holds half a surrogate pair") from None
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
            raise BadPathError(f"a path must not hide a %{pair} in it") from None
        raise BadPathError(f"{'%' + pair!a} is no escape; a percent sign is written %25") from None
    if _HIGH.search(path) and not _UTF_8.fullmatch(path):
        raise BadPathError("the escapes in a path must be UTF-8; these are not")
    return path


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
