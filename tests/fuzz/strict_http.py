"""A strict and slow reader of HTTP/1.1 (RFC 9112), to compare with: what a stream says until it is in doubt."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_FIRST_LINE: Final = re.compile(rb"([A-Z-]+) +([!-~]+) +HTTP/1\.([01])")
"""Several spaces are forgiven: they make no other request of it."""
_VALUE: Final = re.compile(rb"[\t -~\x80-\xff]*")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,12}")


class Asked(NamedTuple):
    """One request."""

    method: bytes
    target: bytes
    body: bytes
    fields: tuple[tuple[bytes, bytes], ...] = ()


class Stream(NamedTuple):
    """What a stream holds: its requests, and whether everything behind them is in doubt or only not whole."""

    requests: list[Asked]
    doubtful: bool


class _DoubtError(Exception):
    """Two readers could see two requests here."""


class _MoreError(Exception):
    """The stream ends within a request."""


def read_stream(data: bytes) -> Stream:
    """The requests of a stream, up to the first that could be read in two ways."""
    requests: list[Asked] = []
    at = 0
    while at < len(data):
        try:
            one, at = _request(data, at)
        except _MoreError:
            return Stream(requests, doubtful=False)
        except _DoubtError:
            return Stream(requests, doubtful=True)
        requests.append(one)
        if _closes(one):
            break
    return Stream(requests, doubtful=False)


def _closes(one: Asked) -> bool:
    return any(
        b"close" in [word.strip(b" \t") for word in value.lower().split(b",")]
        for name, value in one.fields
        if name == b"connection"
    )


def _line(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.find(b"\n", at)
    if end < 0:
        raise _MoreError
    line = data[at:end]
    if not line.endswith(b"\r") or b"\r" in line[:-1]:
        raise _DoubtError
    return line[:-1], end + 1


def _request(data: bytes, at: int) -> tuple[Asked, int]:
    while data[at : at + 1] in (b"\r", b"\n"):  # Ends of lines before a request are skipped.
        at += 1
    if at == len(data):
        raise _MoreError
    line, at = _line(data, at)
    words = _FIRST_LINE.fullmatch(line)
    if words is None:
        raise _DoubtError
    method, target, minor = words.groups()
    fields, at = _fields(data, at)
    body, at = _body(data, at, fields, is_old=minor == b"0")
    if minor == b"0":
        fields.append((b"connection", b"close"))
    return Asked(method, target, body, tuple(fields)), at


def _body(
    data: bytes, at: int, fields: list[tuple[bytes, bytes]], *, is_old: bool
) -> tuple[bytes, int]:
    hosts, lengths, codings = (
        [value for name, value in fields if name == wanted]
        for wanted in (b"host", b"content-length", b"transfer-encoding")
    )
    if len(hosts) > 1 or not (hosts or is_old) or (is_old and codings):
        raise _DoubtError
    if len(lengths) + len(codings) > 1:
        raise _DoubtError
    if codings:
        if codings[0].lower() != b"chunked":
            raise _DoubtError
        return _chunks(data, at)
    if not lengths:
        return b"", at
    if not _LENGTH.fullmatch(lengths[0]):
        raise _DoubtError
    end = at + int(lengths[0])
    if end > len(data):
        raise _MoreError
    return data[at:end], end


def _fields(data: bytes, at: int) -> tuple[list[tuple[bytes, bytes]], int]:
    fields: list[tuple[bytes, bytes]] = []
    while True:
        line, at = _line(data, at)
        if not line:
            return fields, at
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise _DoubtError
        fields.append((name.lower(), value.strip(b" \t")))


def _chunks(data: bytes, at: int) -> tuple[bytes, int]:
    body = b""
    while True:
        line, at = _line(data, at)
        size_text = line.partition(b";")[0]
        if not _SIZE.fullmatch(size_text) or not _VALUE.fullmatch(line):
            raise _DoubtError
        size = int(size_text, 16)
        if not size:
            _, at = _fields(data, at)  # Trailers.
            return body, at
        if at + size > len(data):
            raise _MoreError
        body += data[at : at + size]
        at += size
        if data[at : at + 2] != b"\r\n":
            if len(data) < at + 2 and b"\r\n".startswith(data[at:]):
                raise _MoreError
            raise _DoubtError
        at += 2
