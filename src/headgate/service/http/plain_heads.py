"""Plain heads: requests for checks that can be told apart by their bytes alone.

Clients send the same head again and again. What one asks for is worked out by `plain_head`, which looks at its bytes
and at nothing else: not at the connection, nor at what came before on it. So remembering its answers is safe, whoever
sent a head first and whatever came with it.

A plain head is written in the one way that everybody in front of us reads alike: every line ends in CR LF, every name
is a token with its colon behind it, every value is printable ASCII, no name comes twice, there is one length in plain
digits and no word on transfer, upgrades or the connection but to keep it. Any other head is for the parser, which may
well take it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias

from .gates import is_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .endpoints import Endpoint

Route: TypeAlias = "tuple[Endpoint, bool, int]"
"""An endpoint, whether a denial is told as a status, and how many bytes a body may have."""

Head: TypeAlias = "tuple[Endpoint, bool, int]"
"""What a head asks for: the endpoint, whether a denial is told as a status, the length of the body."""

MAX_HEADS: Final = 1_024
MAX_REMEMBERED: Final = 2_048
"""How many heads are remembered, and how many bytes each may have."""
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
"""Names that say something which the parser or the checks behind it must hear."""

_HEAD = re.compile(
    rb"POST (/[!-~]*+) HTTP/1\.1\r\n((?:[!#$%&'*+\-.^_`|~0-9A-Za-z]++:[\t -~]*+\r\n)++)\r\n"
)
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,8}")


def plain_head(head: bytes, routes: Mapping[bytes, Route]) -> Head | None:
    """What a plain head asks for; `None` if it is not plain, or asks for something else."""
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
    """Whether these say what every plain head says, and nothing that others must hear."""
    media = fields.get(b"content-type", b"")
    return (
        NOT_PLAIN.isdisjoint(fields)
        and bool(fields.get(b"host"))
        and _LENGTH.fullmatch(fields.get(b"content-length", b"")) is not None
        and fields.get(b"connection", b"keep-alive").lower() == b"keep-alive"
        and (media == b"application/json" or is_json(media.decode("ascii")))
    )


class Heads(dict[bytes, "Head | None"]):
    """What heads ask for, by their bytes: `plain_head`, remembered."""

    __slots__ = ("_routes",)

    def __init__(self, routes: Mapping[bytes, Route]) -> None:
        super().__init__()
        self._routes = routes

    def __missing__(self, head: bytes) -> Head | None:
        """Work it out, and remember it while there is room."""
        if len(head) > MAX_REMEMBERED:
            return None
        if len(self) >= MAX_HEADS:
            self.clear()
        found = self[head] = plain_head(head, self._routes)
        return found
