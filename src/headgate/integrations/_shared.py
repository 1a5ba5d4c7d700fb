"""What every integration shares: the key of a request, and the response to a denied one.

Keys say what they are made of, so that a user who is called `203.0.113.9` does not share a count with that address:
`ip:203.0.113.9` is an address, `key:…` is what a function of the application returned. Addresses of IPv6 are counted
by their /64.
"""

from __future__ import annotations

import json
import logging
import re
from functools import lru_cache
from hashlib import blake2b
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote

from ..aio import AsyncLimiter
from ..errors import UsageError
from ..headers import UNNAMED, header_pairs
from ..limiter import Limiter
from ..rules.matching.addresses import address_of, client_address
from ._setup_checks import SetupWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..decision import Decision
    from ..engines.base import AsyncEngine, Engine
    from ..rule_decisions import RulesLike
    from ..rules.model import Network

log: Final = logging.getLogger("headgate")

OnStoreError: TypeAlias = Literal["closed", "open", "fallback"]
"""What to do when the store does not answer: answer 503, let requests pass, or admit this process's share."""
L = TypeVar("L", Limiter, AsyncLimiter)

MAX_KEY: Final = 256
"""Longer keys are stored as a hash: a client must not choose how much memory its count takes."""
QUOTA_EXCEEDED: Final = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY: Final = (
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)
PROBLEM_JSON: Final = "application/problem+json"


class Refusal(NamedTuple):
    """A request that is not let through, ready to be sent."""

    status: int
    problem: dict[str, object]
    headers: list[tuple[bytes, bytes]]

    @property
    def body(self) -> bytes:
        """The problem (RFC 9457), as JSON."""
        return json.dumps(self.problem).encode()


def refusal_of(decision: Decision) -> Refusal:
    """What a request that was denied is answered."""
    if not decision.limited and decision.never:
        problem = _problem(400, "about:blank", "Bad Request", "the path is invalid")
        return Refusal(400, problem, [])
    if decision.source == "closed" and decision.degraded:
        return STORE_UNAVAILABLE
    pairs = header_pairs(decision)
    problem = _problem(429, QUOTA_EXCEEDED, "Too Many Requests", _detail(decision, pairs))
    denied = (one for one in decision.rules if not one and one.source != "shadow")
    names = [UNNAMED if one.rule is None else one.rule for one in denied]
    problem["violated-policies"] = list(dict.fromkeys(names))
    return Refusal(429, problem, pairs)


STORE_UNAVAILABLE: Final = Refusal(
    503,
    {
        "type": REDUCED_CAPACITY,
        "title": "Service Unavailable",
        "status": 503,
        "detail": "the rate limiter cannot reach its store",
    },
    [(b"retry-after", b"1")],
)


def _problem(status: int, kind: str, title: str, detail: str) -> dict[str, object]:
    return {"type": kind, "title": title, "status": status, "detail": detail}


def _detail(decision: Decision, pairs: list[tuple[bytes, bytes]]) -> str:
    """The message for people. The seconds are those of `Retry-After`."""
    if decision.never:
        return "this request costs more than its limit ever allows"
    seconds = int(dict(pairs)[b"retry-after"])
    return f"rate limit exceeded; try again in {seconds} second{'' if seconds == 1 else 's'}"


class Clients:
    """Whom requests are counted for when the application does not say: the client's address.

    `trusted_proxies` are the networks whose `X-Forwarded-For` is trusted. `"unix"` among them means whoever comes
    through a Unix socket. `engine` is where they are counted, for a look at whether that suits the app.
    """

    def __init__(
        self, trusted_proxies: Iterable[str] = (), engine: Engine | AsyncEngine | None = None
    ) -> None:
        if isinstance(trusted_proxies, str):
            raise UsageError(f"trusted_proxies must be a list, such as [{trusted_proxies!r}]")
        named = list(trusted_proxies)
        self._unix = "unix" in named
        self._trusted: tuple[Network, ...] = tuple(map(_network, set(named) - {"unix"}))
        self._watch = SetupWatch(shared=engine is None or engine.describe().shared)
        self.reads_headers = True
        """Whether `X-Forwarded-For` matters; without trusted proxies only while the first requests are looked at."""
        self._warned = False

    def key(self, peer: str | None, forwarded_for: Sequence[str] = ()) -> str:
        """The key of a client. `forwarded_for` is every `X-Forwarded-For`, in order."""
        if self.reads_headers:
            if self._watch.left:
                self._look(peer, forwarded_for)
            peer = self.address(peer, forwarded_for)
        found = _address_key(peer)
        if found is not None:
            return found
        if not self._warned:
            self._warned = True
            log.warning(
                "headgate.W002: a client without an address: all of them share one count; "
                "behind a proxy on a Unix socket, pass trusted_proxies=['unix']"
            )
        return "ip:unknown"

    def _look(self, peer: str | None, forwarded_for: Sequence[str]) -> None:
        trusts = self._unix or bool(self._trusted)
        self._watch.look(peer, forwarded=bool(forwarded_for), trusts_proxies=trusts)
        self.reads_headers = trusts or self._watch.left > 0

    def address(self, peer: str | None, forwarded_for: Sequence[str] = ()) -> str | None:
        """The client's address, as far as it can be believed."""
        if self._unix and address_of(peer) is None and forwarded_for:
            before, _, peer = ",".join(forwarded_for).rpartition(",")
            forwarded_for = [before] if before else []
            peer = peer.strip()
        return client_address(peer, forwarded_for, self._trusted)


@lru_cache(maxsize=65_536)
def _address_key(text: str | None) -> str | None:
    address = address_of(text)
    return None if address is None else f"ip:{address.group}"


def _network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise UsageError(
            f"trusted_proxies: {error}; write networks such as 10.0.0.0/8, or 'unix'"
        ) from None


def key_of(value: object, prefix: str = "key") -> str:
    """The key for what a function of the application returned."""
    key = f"{prefix}:{value}"
    if len(key) <= MAX_KEY:
        return key
    digest = blake2b(key.encode(errors="surrogatepass"), digest_size=32).hexdigest()
    return f"{prefix}#{digest}"


def prefix_of(key: Callable[..., Any]) -> str:
    """The prefix of keys from a function: its name, so that user 7 and team 7 have separate counts."""
    name = getattr(key, "__name__", "key")
    return name if name.isidentifier() and name != "ip" else "key"


class ExemptPaths:
    """Paths that are not counted: `/healthz`, or `/static/*` for everything below."""

    def __init__(self, paths: Iterable[str]) -> None:
        if isinstance(paths, str):
            raise UsageError(f"exempt must be a list of paths, such as [{paths!r}]")
        paths = list(paths)
        for path in paths:
            if not path.startswith("/") or "*" in path.removesuffix("/*"):
                raise UsageError(
                    f"an exempt path must be like '/healthz' or '/static/*', not {path!r}"
                )
        self._exact = frozenset(path for path in paths if not path.endswith("/*"))
        self._below = tuple(path[:-1] for path in paths if path.endswith("/*"))
        self.any = bool(paths)

    def __contains__(self, path: str) -> bool:
        """Whether a path is one of them. One with `..` in it may lead anywhere, and is none."""
        if path in self._exact:
            return True
        return bool(self._below) and path.startswith(self._below) and ".." not in path


def open_limiter(
    kind: type[L],
    limiter: L | str | None,
    rules: RulesLike | None = None,
    on_error: OnStoreError = "closed",
) -> tuple[L, bool]:
    """The limiter, and whether it was opened here; one that was not does as it was told when its store fails."""
    require_on_store_error(on_error)
    if limiter is None or isinstance(limiter, str):
        return kind(limiter or "memory://", rules=rules, on_error=on_error), True
    if on_error == "fallback":
        raise UsageError("the limiter already exists; pass on_error='fallback' when you create it")
    if not isinstance(limiter, kind):
        raise UsageError(
            f"limiter must be a {kind.__name__}, or a URL such as redis://…, not {limiter!r}"
        )
    if rules is None:
        return limiter, False
    if limiter.rules_version is not None:
        raise UsageError("the limiter already has rules; pass rules to only one of the two")
    return kind(limiter.engine, rules=rules, on_error=on_error), True


def encoded(path: str) -> str:
    """A path that the server has decoded, as rules expect it: percent-encoded."""
    return path if _PLAIN.fullmatch(path) else quote(path)


_PLAIN: Final = re.compile(r"[/A-Za-z0-9\-._~!$&'()*+,=:@]++")


def require_on_store_error(on_error: str) -> None:
    """Refuse an `on_error` that is not supported here."""
    if on_error not in {"closed", "open", "fallback"}:
        raise UsageError(f"on_error must be 'closed', 'open' or 'fallback', not {on_error!r}")


def require_on_error(on_error: str) -> None:
    """Refuse what a limit cannot do about a limiter that raises."""
    if on_error not in {"closed", "open"}:
        raise UsageError(
            f"on_error must be 'closed' or 'open', not {on_error!r}; a limiter can have on_error='fallback'"
        )
