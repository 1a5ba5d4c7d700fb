"""Whether a request meets a rule's conditions, tested one by one: slow, obvious, and explained in words.

This defines what `Match` means. Traces and exemptions use it. A property test compares `rulebook`, which does not test
each rule, with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .addresses import contains
from .path_patterns import fits, pieces_of
from .secrets import SECRET_HEADERS, digest_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..model import HeaderTest, Match
    from .normalized_request import NormalizedRequest


def why_not(match: Match, request: NormalizedRequest) -> str | None:
    """The first condition that does not hold, in words; `None` when all of them do."""
    return next(_failing(match, request), None)


def _failing(match: Match, request: NormalizedRequest) -> Iterator[str]:
    yield from _where(match, request)
    yield from _who(match, request)
    for test in match.headers:
        yield from _header(test, request)
    for key, value in match.descriptors:
        if not any(key == k and value in {None, v} for k, v in request.descriptors):
            yield f"there is no descriptor {key}" + ("" if value is None else f"={value}")


def _where(match: Match, request: NormalizedRequest) -> Iterator[str]:
    pattern = match.path_pattern
    if pattern is not None:
        if request.path is None:
            yield f"the path was refused: {request.refusal}"
        elif not fits(pieces_of(pattern), request.segments):
            yield f"the path {request.path} does not match {pattern}"
    if match.methods and not takes_method(match.methods, request.method):
        yield f"the method {request.method} is not {_one_of(sorted(match.methods))}"
    if match.hosts and not any(takes_host(host, request.host) for host in match.hosts):
        yield f"the host {request.host or '(none)'} is not {_one_of(match.hosts)}"


def _who(match: Match, request: NormalizedRequest) -> Iterator[str]:
    if match.requires_authentication and request.user_id is None:
        yield "there is no user id, and the rule requires authentication"
    if match.ip_ranges:
        if request.address is None:
            yield "there is no address, and the rule needs one in a range"
        elif not contains(match.ip_ranges, request.address):
            yield f"the address {request.address.text} is not in {_one_of(match.ip_ranges)}"


def takes_method(methods: frozenset[str], method: str) -> bool:
    """Whether a rule for these methods is about this one: `HEAD` is a `GET` without a body."""
    return method in methods or (method == "HEAD" and "GET" in methods)


def takes_host(pattern: str, host: str | None) -> bool:
    """Whether a host is the one that is meant, or below it."""
    if host is None:
        return False
    if pattern.startswith("*."):
        return len(host) > len(pattern) - 1 and host.endswith(pattern[1:])
    return host == pattern


def _header(test: HeaderTest, request: NormalizedRequest) -> Iterator[str]:
    value = request.headers.get(test.name)
    if not test.present:
        if value is not None:
            yield f"the header {test.name} is present"
    elif value is None:
        yield f"there is no header {test.name}"
    elif test.exact is not None and value != test.exact:
        yield f"the header {test.name} is {_shown(test, value)}, not {_shown(test, test.exact)}"
    elif test.prefix is not None and not value.startswith(test.prefix):
        yield f"the header {test.name} is {_shown(test, value)} and does not begin with {test.prefix!r}"


def _shown(test: HeaderTest, value: str) -> str:
    """A value that others may read."""
    return digest_of(value) if test.name in SECRET_HEADERS else repr(value)


def _one_of(things: Iterable[object]) -> str:
    *most, last = map(str, things)
    return f"{', '.join(most)} or {last}" if most else last
