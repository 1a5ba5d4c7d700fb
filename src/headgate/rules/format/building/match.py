"""Which requests a rule matches: the fields of `match`, each converted into a condition."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ....errors import UsageError
from ...matching.path_patterns import pieces_of
from ...model import HeaderTest, Match, Network
from ..error_collector import INVALID, shown
from .identifier import PLAIN
from .locations import add_usage_error, attempt, valid_items
from .networks import network_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..error_collector import At, ErrorCollector

MATCH_ALL: Final = Match()

_HOST: Final = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]")
_PORT: Final = re.compile(r":[0-9]{1,5}\Z")


def match_from(written: Mapping[str, Any] | None, at: At, errors: ErrorCollector) -> Match:
    """The conditions in these fields. After an error, the result must not be used."""
    if not written or written is INVALID:
        return MATCH_ALL
    asked: dict[str, Any] = {}
    for name, value in written.items():
        if value is not None and value is not INVALID:
            part = _PARTS[name]
            made = part.read(value, (at, name), errors)
            # Headers have two fields.
            asked[part.name] = asked[part.name] + made if part.name in asked else made
    return Match(**asked)


@lru_cache(maxsize=16_384)
def pattern_names(pattern: str | None) -> frozenset[str]:
    """The names of segments in a path pattern; raises `UsageError` if it is not a pattern."""
    if pattern is None or "{" not in pattern:
        if pattern is not None:
            pieces_of(pattern)
        return frozenset()
    names = {piece.text for piece in pieces_of(pattern) if piece.kind == "one"} - {""}
    taken = names.intersection(PLAIN)
    if taken:
        name = min(taken)
        raise UsageError(
            f"{pattern!r} names a segment {name!r}, which is already an identifier; "
            "choose another name"
        )
    return frozenset(names)


def _listed(written: Any) -> list[Any]:
    """One or several values, as a list of the valid ones."""
    if not isinstance(written, list):
        return [written]
    return [one for one in written if one is not INVALID] if INVALID in written else written


def _pattern(written: str, at: At, errors: ErrorCollector) -> str:
    try:
        pattern_names(written)
    except UsageError as error:
        add_usage_error(error, at, errors)
    return written


def _methods(written: str | list[str], _at: At, _errors: ErrorCollector) -> frozenset[str]:
    return _method_set(*_listed(written))


@lru_cache(maxsize=1_024)
def _method_set(*methods: str) -> frozenset[str]:
    """Shared between rules, because most use one of a few sets of methods."""
    return frozenset([method.upper() for method in methods])


def _hosts(written: str | list[str], at: At, errors: ErrorCollector) -> tuple[str, ...]:
    hosts = [attempt(at, errors, _host, host) for host in _listed(written)]
    return tuple(host for host in hosts if host is not None)


def _host(text: str) -> str:
    host = text.lower().removesuffix(".")
    if _HOST.fullmatch(host):
        return host
    if host in {"*", "**"}:
        raise UsageError(f"{text!r} matches every host; leave out `host`")
    port = _PORT.search(host)
    if port and _HOST.fullmatch(host[: port.start()]):
        raise UsageError(f"{text!r} has a port; write {host[: port.start()]}")
    if not host.isascii():
        raise UsageError(f"{text!r} never matches a request; write {_in_ascii(host)}")
    raise UsageError(f"{text!r} is not the name of a host; write example.com or *.example.com")


def _in_ascii(host: str) -> str:
    """The name as used on the wire: `bücher.example` is `xn--bcher-kva.example`."""
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return "it in ASCII"


def _ranges(written: str | list[str], at: At, errors: ErrorCollector) -> tuple[Network, ...]:
    if isinstance(written, str):
        network = attempt(at, errors, network_of, written)
        return () if network is None else (network,)
    ranges = [attempt((at, i), errors, network_of, text) for i, text in valid_items(written)]
    return tuple(network for network in ranges if network is not None)


def _headers(
    written: list[str] | dict[str, Any], at: At, errors: ErrorCollector
) -> tuple[HeaderTest, ...]:
    tests = dict.fromkeys(_listed(written), True) if isinstance(written, list) else written
    made: dict[str, HeaderTest] = {}
    for name, wanted in tests.items():
        if name.lower() in made:
            errors.add((at, name), f"the header {name!r} appears twice", "keep one of them")
        made[name.lower()] = _header(name.lower(), wanted, (at, name), errors)
    return tuple(made.values())


def _header(name: str, wanted: Any, at: At, errors: ErrorCollector) -> HeaderTest:
    if wanted is INVALID or isinstance(wanted, bool):
        return HeaderTest(name=name, present=wanted)
    if isinstance(wanted, str):
        wanted = {"exact": wanted}
    exact, prefix = wanted.get("exact"), wanted.get("prefix")
    present = wanted.get("present") is not False
    if (exact is not None) + (prefix is not None) + (not present) > 1:
        errors.add(
            at, "has several conditions for one header", "keep one of exact, prefix, present"
        )
    if isinstance(exact, str) and exact.strip() != exact:
        errors.add(
            at,
            f"{shown(exact)} begins or ends with a space, which no header value does",
            "remove it",
        )
    if isinstance(prefix, str) and prefix.lstrip() != prefix:
        errors.add(
            at, f"{shown(prefix)} begins with a space, which no header value does", "remove it"
        )
    return HeaderTest(name=name, exact=exact, prefix=prefix, present=present)


def _descriptors(
    written: list[dict[str, Any]] | dict[str, str | bool], at: At, errors: ErrorCollector
) -> tuple[tuple[str, str | None], ...]:
    if isinstance(written, list):
        return tuple((pair.get("key", ""), pair.get("value")) for pair in _listed(written))
    for key, value in written.items():
        if value is False:
            message = "requires the absence of a descriptor, which is not supported"
            errors.add((at, key), message, "write true for any value, or leave it out")
    return tuple((key, None if value is True else str(value)) for key, value in written.items())


def _flag(written: bool, _at: At, _errors: ErrorCollector) -> bool:  # noqa: FBT001 - the same signature as the others
    return written


@dataclass(frozen=True, slots=True)
class MatchPart:
    """A part of a `Match`, and how it is parsed."""

    name: str
    read: Callable[[Any, At, ErrorCollector], Any]


_PARTS: Final[Mapping[str, MatchPart]] = {
    "path_pattern": MatchPart("path_pattern", _pattern),
    "methods": MatchPart("methods", _methods),
    "host": MatchPart("hosts", _hosts),
    "hosts": MatchPart("hosts", _hosts),
    "headers": MatchPart("headers", _headers),
    "required_headers": MatchPart("headers", _headers),
    "ip_subnet": MatchPart("ip_ranges", _ranges),
    "ip_subnets": MatchPart("ip_ranges", _ranges),
    "ip_ranges": MatchPart("ip_ranges", _ranges),
    "requires_authentication": MatchPart("requires_authentication", _flag),
    "descriptors": MatchPart("descriptors", _descriptors),
}
"""By the name of a field."""
