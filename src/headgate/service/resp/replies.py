"""Values to bytes, in RESP2 or RESP3: integers, strings, nil, lists and maps of these, and errors."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from ...engines.remote.serving import WireError

if TYPE_CHECKING:
    from collections.abc import Sequence


def encoded(value: Any, *, resp3: bool = False) -> bytes:  # noqa: PLR0911 - one for each kind
    """A value on the wire; `str` is a simple string and `bytes` a bulk string."""
    kind = type(value)
    if kind is list:
        return _list(value, resp3=resp3)
    if kind is tuple:
        return numbers(value)
    if kind is int:
        return b":%d\r\n" % value
    if kind is bytes:
        return b"$%d\r\n%b\r\n" % (len(value), value)
    if kind is str:
        return b"+%b\r\n" % value.encode()
    if value is None:
        return b"_\r\n" if resp3 else b"$-1\r\n"
    if isinstance(value, dict):
        items = [part for pair in value.items() for part in pair]
        parts = b"".join([encoded(part, resp3=resp3) for part in items])
        return b"%%%d\r\n%b" % (len(value), parts) if resp3 else b"*%d\r\n%b" % (len(items), parts)
    if isinstance(value, WireError):
        return error(str(value))
    raise TypeError(f"{value!r:.80} cannot be sent")


_FORMATS: Final = [b"*%d\r\n" % many + b":%d\r\n" * many for many in range(17)]


def numbers(values: Sequence[int]) -> bytes:
    """A list of integers, encoded at once."""
    many = len(values)
    if many < len(_FORMATS):
        return _FORMATS[many] % tuple(values)
    return b"*%d\r\n%b" % (many, (b":%d\r\n" * many) % tuple(values))


def rows_of_numbers(rows: Sequence[Sequence[int]]) -> bytes:
    """The replies to several commands, each a list of the same number of integers."""
    return (_FORMATS[len(rows[0])] * len(rows)) % tuple(chain.from_iterable(rows))


def error(text: str) -> bytes:
    """An error reply; its first word is the kind of error."""
    line = text.replace("\r", " ").replace("\n", " ")
    return b"-%b\r\n" % line.encode("utf-8", "replace")


def _list(values: list[Any], *, resp3: bool) -> bytes:
    try:
        return numbers(values)
    except TypeError:  # Not all of them are numbers.
        if (
            values
            and type(values[-1]) is list
            and all(type(one) in (int, bool) for one in values[:-1])
        ):
            head = numbers(values[:-1])
            return b"*%d%b%b" % (
                len(values),
                head[head.index(b"\r") :],
                _list(values[-1], resp3=resp3),
            )
        return b"*%d\r\n%b" % (len(values), b"".join([encoded(one, resp3=resp3) for one in values]))
