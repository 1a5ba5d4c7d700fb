"""Auth: who the caller is, and what it may do.

A caller shows a token in the `Authorization` header, and nowhere else: what a browser sends by itself (cookies, forms,
a password in the address) never counts, so no page can act for its reader. A token is looked up by its hash. The time
that takes depends on the hash of what was sent, not on any stored token; the final comparison takes constant time.

Without any token only this machine is served, and everyone on it has all roles. Then the `Host` header of requests to
management must also name this machine: a page whose owner has bound its name to 127.0.0.1 (DNS rebinding) sends its
own. Checks come through proxies, which send any `Host`; but a browser also sends the `Origin` of the page, and that
must be this machine's.

Callers that show wrong tokens are rate limited, by address. A valid token always passes.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import ConfigError
from ...limiter import Limiter
from .hosts import is_loopback, open_to_everybody
from .tokens import INLINE, ROLES, Role, Token, read_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable

BEARER: Final = b"bearer "
GUESSES: Final = "10/minute"
LOOK_EVERY: Final = 1.0
"""Seconds between two checks of the token file."""
MAX_HEADER: Final = 512


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller with access."""

    name: str
    role: Role
    address: str = ""

    def may(self, role: Role) -> bool:
        """Whether they have this role."""
        return ROLES.index(self.role) >= ROLES.index(role)


ANYBODY: Final = Caller("anybody", "admin")
"""Everyone on this machine, if there are no tokens."""


class Auth:
    """Knows the tokens. `source` is a file, which is read again when it changes, or hashes as text.

    Empty means none.
    """

    def __init__(
        self,
        source: str = "",
        *,
        checks_need_token: bool = False,
        hosts: Iterable[str] | None = None,
    ) -> None:
        self._source = source
        self._log = logging.getLogger("headgate.service")
        self._by_digest: dict[bytes, Token] = {}
        self._stamp: tuple[int, int, int] | None = None
        self._looked = 0.0
        self._guesses = Limiter()
        self._hosts = None if hosts is None else frozenset(one.lower() for one in hosts)
        self.required = bool(source)
        """Whether management needs a token."""
        self.checks_need_token = checks_need_token
        if source:
            self._load()
        elif checks_need_token:
            raise ConfigError(
                "checks need a token, but there are none; set 'tokens' to the token file"
            )

    def __repr__(self) -> str:
        return f"<Auth with {len(self._by_digest)} tokens>"

    def identify(self, authorization: bytes | None) -> Token | None:
        """The token in this header, if it is valid."""
        if authorization is None or len(authorization) > MAX_HEADER:
            return None
        if authorization[:7].lower() != BEARER:
            return None
        self._refresh()
        digest = hashlib.sha256(authorization[7:].strip()).digest()
        token = self._by_digest.get(digest)
        if token is None or not hmac.compare_digest(bytes.fromhex(token.sha256), digest):
            return None
        return token if token.is_valid_at(datetime.now(UTC)) else None

    def caller(self, authorization: bytes | None, address: str) -> Caller | None:
        """The caller; `None` if a token is required and none was shown."""
        if not self.required:
            return Caller(ANYBODY.name, ANYBODY.role, address)
        token = self.identify(authorization)
        return None if token is None else Caller(token.name, token.role, address)

    def token_of(self, name: str) -> Token | None:
        """The token with this name, if it is valid."""
        self._refresh()
        now = datetime.now(UTC)
        found = (one for one in self._by_digest.values() if one.name == name)
        return next((one for one in found if one.is_valid_at(now)), None)

    def may_check(self, authorization: bytes | None) -> bool:
        """Whether a check is permitted; on the hot path."""
        return not self.checks_need_token or self.identify(authorization) is not None

    def guess_failed(self, address: str) -> float:
        """Record a wrong token from this address; returns the seconds until the next try is allowed, 0 for at once."""
        return self._guesses.hit(address or "unknown", GUESSES).retry_after

    def allows_host(self, host: bytes | None) -> bool:
        """Whether the `Host` header of a request to management names this service."""
        return self._hosts is None or _name_of(host or b"") in self._hosts

    def allows_origins(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a check comes from no page, or from one of this service's."""
        if self._hosts is None:
            return True
        origins = [value for name, value in headers if name == b"origin"]
        return all(_name_of(one.partition(b"://")[2]) in self._hosts for one in origins)

    def _refresh(self) -> None:
        """Check the file again, at most once a second; if it cannot be read, the old tokens stay."""
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY or self._source.startswith(INLINE):
            return
        try:
            if self._stamp != self._stamp_now():
                self._load()
        except (OSError, ConfigError) as error:
            self._looked = now
            self._log.error("the previous tokens stay valid: %s", error)
        self._looked = now

    def _load(self) -> None:
        if not self._source.startswith(INLINE):
            try:
                self._stamp = self._stamp_now()
            except OSError:
                self._stamp = None  # `read_tokens` reports the error.
        tokens = read_tokens(self._source)
        self._by_digest = {bytes.fromhex(one.sha256): one for one in tokens}
        self._looked = time.monotonic()

    def _stamp_now(self) -> tuple[int, int, int]:
        found = Path(self._source).stat()
        return found.st_mtime_ns, found.st_size, found.st_ino


def _name_of(host: bytes) -> str:
    """A host without its port."""
    name = host.decode("latin-1").lower()
    return name if name.endswith("]") else name.rpartition(":")[0] or name


def require_safe_bind(host: str, auth: Auth | None) -> None:
    """Refuse to expose management to the world: a public address needs a valid token."""
    if is_loopback(host) or (auth is not None and auth.required and auth._by_digest):
        return
    raise ConfigError(open_to_everybody(host))
