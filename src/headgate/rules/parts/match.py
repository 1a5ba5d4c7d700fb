"""Which requests: the fields of `match`, each turned into what can be asked of a request."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ...errors import UsageError
from ..faults import WRONG, shown
from ..model import HeaderTest, Match, Network
from ..patterns import pieces_of
from .identifier import PLAIN
from .networks import network_of
from .where import attempt, note, numbered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..faults import At, Faults

EVERYTHING: Final = Match()

_HOST: Final = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]")
_PORT: Final = re.compile(r":[0-9]{1,5}\Z")


def match_from(written: Mapping[str, Any] | None, at: At, faults: Faults) -> Match:
    """What these fields ask of a request. Where a fault was noted, the result is not to be used."""
    if not written or written is WRONG:
        return EVERYTHING
    asked: dict[str, Any] = {}
    for name, value in written.items():
        if value is not None and value is not WRONG:
            part, read = _PARTS[name]
            made = read(value, (at, name), faults)
            asked[part] = asked[part] + made if part in asked else made  # Headers have two fields.
    return Match(**asked)


@lru_cache(maxsize=16_384)
def pattern_names(pattern: str | None) -> frozenset[str]:
    """The names that a path pattern gives to segments; raises `UsageError` for what is no pattern."""
    if pattern is None or "{" not in pattern:
        if pattern is not None:
            pieces_of(pattern)
        return frozenset()
    names = {piece.text for piece in pieces_of(pattern) if piece.kind == "one"} - {""}
    taken = names.intersection(PLAIN)
    if taken:
        name = min(taken)
        raise UsageError(
            f"{pattern!r} calls a segment {name!r}, which already means something to an identifier; "
            "choose another name"
        )
    return frozenset(names)


def _listed(written: Any) -> list[Any]:
    """One or several, as a list of those that are sound."""
    if not isinstance(written, list):
        return [written]
    return [one for one in written if one is not WRONG] if WRONG in written else written


def _pattern(written: str, at: At, faults: Faults) -> str:
    try:
        pattern_names(written)
    except UsageError as error:
        note(error, at, faults)
    return written


def _methods(written: str | list[str], _at: At, _faults: Faults) -> frozenset[str]:
    return _method_set(*_listed(written))


@lru_cache(maxsize=1_024)
def _method_set(*methods: str) -> frozenset[str]:
    """Most rules mean one of a few sets of methods, and share it."""
    return frozenset([method.upper() for method in methods])


def _hosts(written: str | list[str], at: At, faults: Faults) -> tuple[str, ...]:
    hosts = [attempt(at, faults, _host, host) for host in _listed(written)]
    return tuple(host for host in hosts if host is not None)


def _host(text: str) -> str:
    host = text.lower().removesuffix(".")
    if _HOST.fullmatch(host):
        return host
    if host in {"*", "**"}:
        raise UsageError(f"{text!r} is every host; leave out `host`")
    port = _PORT.search(host)
    if port and _HOST.fullmatch(host[: port.start()]):
        raise UsageError(f"{text!r} has a port; write {host[: port.start()]}")
    if not host.isascii():
        raise UsageError(f"{text!r} is not how requests spell it; write {_in_ascii(host)}")
    raise UsageError(f"{text!r} is not the name of a host; write example.com or *.example.com")


def _in_ascii(host: str) -> str:
    """The name as it goes over the wire: `bücher.example` is `xn--bcher-kva.example`."""
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return "it in ASCII"


def _ranges(written: str | list[str], at: At, faults: Faults) -> tuple[Network, ...]:
    if isinstance(written, str):
        network = attempt(at, faults, network_of, written)
        return () if network is None else (network,)
    ranges = [attempt((at, i), faults, network_of, text) for i, text in numbered(written)]
    return tuple(network for network in ranges if network is not None)


def _headers(written: list[str] | dict[str, Any], at: At, faults: Faults) -> tuple[HeaderTest, ...]:
    tests = dict.fromkeys(_listed(written), True) if isinstance(written, list) else written
    made: dict[str, HeaderTest] = {}
    for name, wanted in tests.items():
        if name.lower() in made:
            faults.add((at, name), f"the header {name!r} is there twice", "keep one of them")
        made[name.lower()] = _header(name.lower(), wanted, (at, name), faults)
    return tuple(made.values())


def _header(name: str, wanted: Any, at: At, faults: Faults) -> HeaderTest:
    if wanted is WRONG or isinstance(wanted, bool):
        return HeaderTest(name=name, present=wanted)
    if isinstance(wanted, str):
        wanted = {"exact": wanted}
    exact, prefix = wanted.get("exact"), wanted.get("prefix")
    present = wanted.get("present") is not False
    if (exact is not None) + (prefix is not None) + (not present) > 1:
        faults.add(
            at, "asks for several things of one header", "keep one of exact, prefix, present"
        )
    if isinstance(exact, str) and exact.strip() != exact:
        faults.add(at, f"{shown(exact)} has a space at an end, and no header does", "remove it")
    if isinstance(prefix, str) and prefix.lstrip() != prefix:
        faults.add(at, f"{shown(prefix)} begins with a space, and no header does", "remove it")
    return HeaderTest(name=name, exact=exact, prefix=prefix, present=present)


def _descriptors(
    written: list[dict[str, Any]] | dict[str, str | bool], at: At, faults: Faults
) -> tuple[tuple[str, str | None], ...]:
    if isinstance(written, list):
        return tuple((pair.get("key", ""), pair.get("value")) for pair in _listed(written))
    for key, value in written.items():
        if value is False:
            message = "asks for a descriptor that is not there, and that cannot be asked"
            faults.add((at, key), message, "write true for any value, or leave it out")
    return tuple((key, None if value is True else str(value)) for key, value in written.items())


def _flag(written: bool, _at: At, _faults: Faults) -> bool:  # noqa: FBT001 - as every reader
    return written


_PARTS: Final[dict[str, tuple[str, Callable[[Any, At, Faults], Any]]]] = {
    "path_pattern": ("path_pattern", _pattern),
    "methods": ("methods", _methods),
    "host": ("hosts", _hosts),
    "hosts": ("hosts", _hosts),
    "headers": ("headers", _headers),
    "required_headers": ("headers", _headers),
    "ip_subnet": ("ip_ranges", _ranges),
    "ip_subnets": ("ip_ranges", _ranges),
    "ip_ranges": ("ip_ranges", _ranges),
    "requires_authentication": ("requires_authentication", _flag),
    "descriptors": ("descriptors", _descriptors),
}
"""By the name of a field: which part of a `Match` it is, and how that is read."""
