"""A request in normal form, as rules see it.

Made once per request. Header names are in lower case, the method in upper case, the host has no port, an IPv4-mapped
address is IPv4, the path is canonical or refused with a reason. Empty values count as missing. If the path has several
readings there is one normalized request for each; only the path differs.
"""

from __future__ import annotations

from copy import copy
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ...charge import require_cost
from ...errors import UsageError
from ..model import NOTHING
from ..request import Request
from .addresses import address_of
from .paths import BadPathError, is_canonical, readings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .addresses import Address


MAX_HOST: Final = 280
"""A name has at most 253 characters; a port and a dot may follow."""


class NormalizedRequest:
    """One request in normal form."""

    __slots__ = (
        "address",
        "api_key",
        "cost",
        "descriptors",
        "headers",
        "host",
        "ip",
        "method",
        "others",
        "path",
        "refusal",
        "segments",
        "user_id",
    )

    method: str
    user_id: str | None
    api_key: str | None
    host: str | None
    path: str | None
    """Canonical; `None` when it was refused."""
    refusal: str
    """Why it was."""
    segments: list[str]
    others: tuple[str, ...]
    """The other readings of the path, canonical as well; most paths have none."""

    def __init__(self, request: Request, headers: frozenset[str] | None = None) -> None:
        """Normalize a request; if `headers` is given, only these headers, in lower case, are read."""
        self.method = str.upper(request.method)  # Bytes have such a method too, and are no text.
        self.ip = request.ip
        self.address: Address | None = address_of(request.ip)
        self.user_id = request.user_id or None
        self.api_key = request.api_key or None
        self.host = host_of(request.host) if request.host else None
        self.headers: Mapping[str, str] = (
            NOTHING if headers is not None and not headers else _lowered(request.headers, headers)
        )
        self.descriptors = request.descriptors
        self.cost = request.cost
        if request.cost is not None:
            require_cost(request.cost)
        self.others = ()
        self.refusal = ""
        raw = request.path
        if raw == "/":
            self.path = raw
            self.segments = []
            return
        if is_canonical(raw):  # The usual case.
            self.path = raw
            self.segments = raw.split("/")[1:]
            return
        try:
            path, *others = readings(raw)
        except BadPathError as refused:
            self.path, self.segments, self.refusal = None, [], str(refused)
        else:
            self.others = tuple(others)
            self._read_as(path)

    def _read_as(self, path: str) -> None:
        self.path = path
        self.segments = path.split("/")[1:] if len(path) > 1 else _segments_of(path)

    def readings(self) -> list[NormalizedRequest]:
        """The request with each reading of its path, this one first."""
        readings = [self]
        for path in self.others:
            reading = copy(self)
            reading.others = ()
            reading._read_as(path)
            readings.append(reading)
        return readings


def host_of(text: str) -> str | None:
    """A host's one spelling: lower case, without a port and without the dot that ends a full name."""
    return None if len(text) > MAX_HOST else _host_of(text)


@lru_cache(maxsize=4_096)
def _host_of(text: str) -> str | None:
    host = text.lower()
    if host.startswith("["):
        return host[: host.find("]") + 1] or None
    return host.partition(":")[0].strip(" .") or None


def _segments_of(path: str) -> list[str]:
    """Of `/` none; of `*`, which stands for the whole server, that."""
    return [] if path == "/" else [path]


def _lowered(headers: Mapping[str, str], wanted: frozenset[str] | None) -> dict[str, str]:
    """Headers by their names in lower case; one that came in two spellings is joined."""
    lower, strip = str.lower, str.strip  # Bytes have such methods too, and are no text.
    lowered: dict[str, str] = {}
    for spelled, value in headers.items():
        name = lower(spelled)
        if wanted is None or name in wanted:
            known = lowered.get(name)
            lowered[name] = strip(value) if known is None else f"{known}, {strip(value)}"
    return lowered


_KINDS: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
    ("method", str, "text"),
    ("path", str, "text"),
    ("ip", (str, type(None)), "text"),
    ("user_id", (str, type(None)), "text"),
    ("api_key", (str, type(None)), "text"),
    ("host", (str, type(None)), "text"),
)


def require_request(request: Any) -> None:
    """Refuse what is no request, and requests whose attributes are of the wrong kind."""
    if not isinstance(request, Request):
        raise UsageError(
            f"a request must be a headgate.Request(method, path, ip=…), not {type(request).__name__}"
        )
    for name, kind, wanted in _KINDS:
        value = getattr(request, name)
        if not isinstance(value, kind):
            raise UsageError(f"a request's {name} must be {wanted}, not {value!r}")
    try:
        wrong = [
            (name, value)
            for name, value in request.headers.items()
            if not isinstance(name, str) or not isinstance(value, str)
        ]
    except AttributeError:
        raise UsageError(
            f"a request's headers must be a mapping of strings, not {request.headers!r}"
        ) from None
    if wrong:
        raise UsageError(f"a request's headers must be strings, not {wrong[0]!r}")
    if not isinstance(request.descriptors, tuple | list):
        raise UsageError(
            f"a request's descriptors must be a tuple of pairs, not {request.descriptors!r}"
        )
    for pair in request.descriptors:
        if not isinstance(pair, tuple) or [type(one) for one in pair] != [str, str]:
            raise UsageError(f"a request's descriptors must be pairs of strings, not {pair!r}")
