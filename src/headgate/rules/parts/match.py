"""Which requests: the fields of `match`, each turned into what can be asked of a request."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ...errors import UsageError
from ..faults import shown
from ..model import HeaderTest, Match, Network
from ..patterns import pieces_of
from .identifier import PLAIN
from .networks import network_of
from .where import attempt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..faults import At, Faults

EVERYTHING: Final = Match()

_HEADER_FIELDS: Final = frozenset({"headers", "required_headers"})
_HOST: Final = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]")
_PORT: Final = re.compile(r":[0-9]{1,5}\Z")


def match_from(written: Mapping[str, Any] | None, at: At, faults: Faults) -> Match:
    """What these fields ask of a request. Where a fault was noted, the result is not to be used."""
    if not written:
        return EVERYTHING
    pattern = written.get("path_pattern")
    if pattern is not None:
        attempt(partial(pattern_names, pattern), (at, "path_pattern"), faults)
    return Match(
        path_pattern=pattern,
        methods=frozenset(method.upper() for method in _listed(written.get("methods"))),
        hosts=_hosts(written, at, faults),
        headers=tuple(_headers(written, at, faults)) if _HEADER_FIELDS & written.keys() else (),
        ip_ranges=_ranges(written, at, faults),
        requires_authentication=written.get("requires_authentication") is True,
        descriptors=tuple(_descriptors(written["descriptors"])) if "descriptors" in written else (),
    )


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
    """One or several, as a list."""
    if written is None:
        return []
    return written if isinstance(written, list) else [written]


def _named(written: Mapping[str, Any], *names: str) -> tuple[str, Any]:
    """A field that has several names: the one that was used, and its value."""
    return next(
        ((name, written[name]) for name in names if written.get(name) is not None),
        (names[0], None),
    )


def _hosts(written: Mapping[str, Any], at: At, faults: Faults) -> tuple[str, ...]:
    name, value = _named(written, "host", "hosts")
    hosts = [attempt(partial(_host, host), (at, name), faults) for host in _listed(value)]
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


def _ranges(written: Mapping[str, Any], at: At, faults: Faults) -> tuple[Network, ...]:
    name, value = _named(written, "ip_subnet", "ip_subnets", "ip_ranges")
    if value is None:
        return ()
    here: At = (at, name)
    if isinstance(value, str):
        network = attempt(partial(network_of, value), here, faults)
        return () if network is None else (network,)
    ranges = [attempt(partial(network_of, text), (here, i), faults) for i, text in enumerate(value)]
    return tuple(network for network in ranges if network is not None)


def _headers(written: Mapping[str, Any], at: At, faults: Faults) -> Iterator[HeaderTest]:
    required = written.get("required_headers") or {}
    if isinstance(required, list):
        required = dict.fromkeys(required, True)
    for field, tests in (("headers", written.get("headers") or {}), ("required_headers", required)):
        seen: set[str] = set()
        for name, wanted in tests.items():
            here: At = ((at, field), name)
            if name.lower() in seen:
                faults.add(here, f"the header {name!r} is there twice", "keep one of them")
            seen.add(name.lower())
            yield _header(name.lower(), wanted, here, faults)


def _header(name: str, wanted: Any, at: At, faults: Faults) -> HeaderTest:
    if isinstance(wanted, bool):
        return HeaderTest(name=name, present=wanted)
    if isinstance(wanted, str):
        wanted = {"exact": wanted}
    exact, prefix = wanted.get("exact"), wanted.get("prefix")
    present = wanted.get("present") is not False
    if (exact is not None) + (prefix is not None) + (not present) > 1:
        faults.add(
            at, "asks for several things of one header", "keep one of exact, prefix, present"
        )
    if exact is not None and exact.strip() != exact:
        faults.add(at, f"{shown(exact)} has a space at an end, and no header does", "remove it")
    if prefix is not None and prefix.lstrip() != prefix:
        faults.add(at, f"{shown(prefix)} begins with a space, and no header does", "remove it")
    return HeaderTest(name=name, exact=exact, prefix=prefix, present=present)


def _descriptors(written: Any) -> Iterator[tuple[str, str | None]]:
    if isinstance(written, dict):
        for key, value in written.items():
            yield key, None if value is True else value
    else:
        for pair in written or ():
            yield pair["key"], pair.get("value")
