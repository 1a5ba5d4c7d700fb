"""Plain heads: requests for checks that can be recognised by their bytes alone.

Clients send the same head again and again. `plain_head` interprets it by its bytes and nothing else: not by the
connection, nor by earlier requests on it. So caching its results is safe, whoever sent a head first and whatever came
with it.

A plain head is written in the one way that all proxies parse alike: every line ends in CR LF, every name is a token
followed by its colon, every value is printable ASCII, no name occurs twice, there is one length in plain digits, and
nothing about transfer encodings, upgrades or the connection except to keep it open. Any other head is left to the
parser, which may well accept it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias

from .gates import is_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .endpoints import Endpoint

Route: TypeAlias = "tuple[Endpoint, bool, int]"
"""An endpoint, whether a denial is sent as a status, and the maximum size of a body."""

Head: TypeAlias = "tuple[Endpoint, bool, int]"
"""The content of a head: the endpoint, whether a denial is sent as a status, the length of the body."""

MAX_HEADS: Final = 1_024
MAX_REMEMBERED: Final = 2_048
"""How many heads are cached, and the maximum size of each."""
AS_STATUS: Final = b"x-headgate-status"
NOT_PLAIN: Final = frozenset(
    (
        b"content-encoding",
        b"expect",
        b"http2-settings",
        b"origin",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""Headers that the parser or the checks behind it must see."""

_HEAD = re.compile(
    rb"POST (/[!-~]*+) HTTP/1\.1\r\n((?:[!#$%&'*+\-.^_`|~0-9A-Za-z]++:[\t -~]*+\r\n)++)\r\n"
)
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,8}")


def plain_head(head: bytes, routes: Mapping[bytes, Route]) -> Head | None:
    """The content of a plain head; `None` if it is not plain, or for another endpoint."""
    found = _HEAD.fullmatch(head)
    route = None if found is None else routes.get(found[1])
    if found is None or route is None:
        return None
    lines = found[2][:-2].split(b"\r\n")
    fields = dict(map(_field, lines))
    if len(fields) < len(lines) or not _are_plain(fields):
        return None
    endpoint, as_status, max_body = route
    length = int(fields[b"content-length"])
    if length > max_body:
        return None
    return endpoint, as_status or fields.get(AS_STATUS) == b"1", length


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.lower(), value.strip(b" \t")


def _are_plain(fields: Mapping[bytes, bytes]) -> bool:
    """Whether these have what every plain head has, and nothing that the parser must see."""
    media = fields.get(b"content-type", b"")
    return (
        NOT_PLAIN.isdisjoint(fields)
        and bool(fields.get(b"host"))
        and _LENGTH.fullmatch(fields.get(b"content-length", b"")) is not None
        and fields.get(b"connection", b"keep-alive").lower() == b"keep-alive"
        and (media == b"application/json" or is_json(media.decode("ascii")))
    )


class Heads(dict[bytes, "Head | None"]):
    """A cache of `plain_head`, by the bytes of the head."""

    __slots__ = ("_routes",)

    def __init__(self, routes: Mapping[bytes, Route]) -> None:
        super().__init__()
        self._routes = routes

    def __missing__(self, head: bytes) -> Head | None:
        """Compute it, and cache it while there is room."""
        if len(head) > MAX_REMEMBERED:
            return None
        if len(self) >= MAX_HEADS:
            self.clear()
        found = self[head] = plain_head(head, self._routes)
        return found
