"""Tickets: how a browser opens a WebSocket, to which it cannot attach a token.

An ordinary request with the token gets a ticket, and the WebSocket shows it. A ticket holds for ten seconds, for the
page's own origin, for as long as its token does, and once. It is signed with a key that follows from the hash of the
token, which may be kept in the open, and from a secret that the nodes and workers of a service share and others do not
know. So any of them can tell whether it is good, and nothing has to be kept. That it is used only once is known to the
node that took it: workers tell each other by files in the folder that they share.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from typing import TYPE_CHECKING, Final

import msgspec

from ..security.auth import Caller

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..security.auth import Auth

LIFETIME: Final = 10
"""Seconds."""
MAX_TICKET: Final = 1_024


class _Content(msgspec.Struct, array_like=True):
    name: str
    origin: str
    ends: float
    nonce: str


class Tickets:
    """Gives tickets and takes them back. `secret` is known to this service only, and to all of it."""

    def __init__(
        self,
        auth: Auth,
        secret: str,
        clock: Callable[[], float] = time.time,
        folder: Path | None = None,
    ) -> None:
        self._auth = auth
        self._folder = folder
        self._secret = secret
        self._clock = clock
        self._used: dict[str, float] = {}

    def give(self, caller: Caller, origin: str) -> str:
        """A ticket for this caller, for pages of this origin."""
        ends = self._clock() + LIFETIME
        content = _Content(caller.name, origin, ends, secrets.token_urlsafe(16))
        body = _text(msgspec.json.encode(content))
        signature = self._signature(caller.name, body)
        assert signature is not None, "only an authenticated caller gets a ticket"
        return f"{body}.{signature}"

    def take(self, ticket: str, origin: str, address: str = "") -> Caller | None:
        """Who got this ticket, if it is good; it is not from then on."""
        body, _, shown = ticket.partition(".")
        if len(ticket) > MAX_TICKET:
            return None
        try:
            content = msgspec.json.decode(_bytes(body), type=_Content)
        except (Error, ValueError, msgspec.MsgspecError):
            return None
        signature = self._signature(content.name, body)
        if signature is None or not hmac.compare_digest(signature.encode(), shown.encode()):
            return None
        now = self._clock()
        if content.origin != origin or not now < content.ends <= now + LIFETIME:
            return None
        if not self._is_first_use(content, now):
            return None
        return self.holder(content.name, address)

    def _is_first_use(self, content: _Content, now: float) -> bool:
        """Note that a good ticket is used; false if it was, by this process or by another worker."""
        if content.nonce in self._used:
            return False
        over = [nonce for nonce, ends in self._used.items() if ends <= now]
        for nonce in over:
            del self._used[nonce]
            if self._folder is not None:
                self._mark(nonce).unlink(missing_ok=True)
        if self._folder is not None:
            try:
                self._mark(content.nonce).touch(exist_ok=False)
            except FileExistsError:
                return False
        self._used[content.nonce] = content.ends
        return True

    def _mark(self, nonce: str) -> Path:
        """The file of a ticket that was used; whoever makes it was the first."""
        assert self._folder is not None
        return self._folder / f"ticket-{nonce}"

    def holder(self, name: str, address: str = "") -> Caller | None:
        """Who has this name, as long as their token holds."""
        if not self._auth.required:
            return self._auth.caller(None, address)
        token = self._auth.token_of(name)
        return None if token is None else Caller(token.name, token.role, address)

    def _signature(self, name: str, body: str) -> str | None:
        key = self._secret
        if self._auth.required:
            token = self._auth.token_of(name)
            if token is None:
                return None
            key += token.sha256
        return _text(hmac.digest(f"headgate ticket {key}".encode(), body.encode(), hashlib.sha256))


def _text(data: bytes) -> str:
    """As it may stand in a header that names protocols."""
    return urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
