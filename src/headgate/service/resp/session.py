"""A session: the identity of the client of one connection, and what it may do.

A token is shown once, by `AUTH` or `HELLO`, and checked again every second: if it is revoked, access ends here, too.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, Final

from ... import __version__
from ...engines.remote.serving import WireError
from ..security.auth import ANYBODY, Caller

if TYPE_CHECKING:
    from ..security.auth import Auth
    from ..security.tokens import Role
    from .reading import Words

DEFAULT_USER: Final = b"default"
LOOK_EVERY: Final = 1.0
MAX_NAME: Final = 64
WRONG: Final = "WRONGPASS invalid username-password pair or user is disabled."
_numbers: Final = itertools.count(1)


class Session:
    """The state of one client."""

    def __init__(self, auth: Auth, address: str) -> None:
        self._auth = auth
        self._token = b""
        self._looked = 0.0
        self._caller: Caller | None = None
        self.address = address
        self.id = next(_numbers)
        self.name = b""
        self.resp3 = False
        self.began_again = False
        """Whether the client has to show its token once more."""
        self.ended = False
        """Whether further input is ignored."""

    @property
    def caller(self) -> Caller | None:
        """The owner of the token that was shown, if it is still valid."""
        if not self._auth.required:
            return Caller(ANYBODY.name, ANYBODY.role, self.address)
        if self._token and time.monotonic() - self._looked > LOOK_EVERY:
            self._identify(self._token)
        return self._caller

    @property
    def welcome(self) -> bool:
        """Whether the client may send any command at all."""
        return not self._auth.checks_need_token or self.caller is not None

    def may(self, role: Role) -> bool:
        """Whether the client has this role; everyone may check, unless that needs a token."""
        if role == "checker" and not self._auth.checks_need_token:
            return True
        caller = self.caller
        return caller is not None and caller.may(role)

    def refusal(self, role: Role) -> WireError:
        """The error for a client without this role."""
        if self.caller is None:
            return WireError("NOAUTH Authentication required.")
        return WireError(f"NOPERM this needs a token with the role {role}")

    def authenticate(self, user: bytes, token: bytes) -> None:
        """Accept a token; raises an error if it is invalid."""
        if not self._auth.required:
            raise WireError("ERR AUTH called without any token configured; see the setting tokens")
        found = self._identify(token)
        if found is not None and user in (DEFAULT_USER, b"", found.name.encode()):
            return
        self._token, self._caller = b"", None
        wait = self._auth.guess_failed(self.address)
        if wait:
            raise WireError(f"WRONGPASS too many wrong tokens; wait {int(wait) + 1} s")
        raise WireError(WRONG)

    def _identify(self, token: bytes) -> Caller | None:
        known = self._auth.identify(b"Bearer " + token)
        self._looked = time.monotonic()
        self._token = token
        self._caller = None if known is None else Caller(known.name, known.role, self.address)
        return self._caller

    def set_name(self, name: bytes) -> None:
        """Store the client's name; only the client itself can read it."""
        require_name(name)
        self.name = name

    def reset(self) -> None:
        """Begin again, as a client that has just connected: it has shown no token, and speaks RESP2."""
        self._token, self._caller, self.began_again = b"", None, True
        self.resp3, self.name = False, b""

    def hello(self, words: Words) -> dict[bytes, Any]:
        """`HELLO [version [AUTH user token] [SETNAME name]]`: what this server is. An invalid one changes nothing."""
        resp3, rest = self.resp3, words[1:]
        if rest:
            if rest[0] not in (b"2", b"3"):
                raise WireError("NOPROTO unsupported protocol version")
            resp3, rest = rest[0] == b"3", rest[1:]
        named: bytes | None = None
        shown: tuple[bytes, bytes] | None = None
        while rest:
            option = rest[0].upper()
            if option == b"AUTH" and len(rest) > 2:
                shown, rest = (rest[1], rest[2]), rest[3:]
            elif option == b"SETNAME" and len(rest) > 1:
                named, rest = rest[1], rest[2:]
            else:
                raise WireError("ERR Syntax error in HELLO")
        if named is not None:
            require_name(named)
        if shown is not None:
            self.authenticate(*shown)
        if not self.welcome:
            raise WireError(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> "
                "AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version "
                "at the same time"
            )
        if named is not None:
            self.name = named
        self.resp3 = resp3
        return {
            b"server": b"headgate",
            b"version": __version__.encode(),
            b"proto": 3 if resp3 else 2,
            b"id": self.id,
            b"mode": b"standalone",
            b"role": b"master",
            b"modules": [],
        }

    def client(self, words: Words) -> Any:
        """`CLIENT SETNAME, GETNAME, SETINFO, ID, INFO`: what client libraries send by themselves."""
        match [words[1].upper(), *words[2:]]:
            case [b"SETNAME", name]:
                self.set_name(name)
                return "OK"
            case [b"GETNAME"]:
                return self.name or None
            case [b"SETINFO", _, _]:
                return "OK"
            case [b"ID"]:
                return self.id
            case [b"INFO"]:
                proto = 3 if self.resp3 else 2
                return b"id=%d addr=%b name=%b resp=%d" % (
                    self.id, self.address.encode(), self.name, proto,
                )  # fmt: skip
        raise WireError("ERR unknown subcommand or wrong number of arguments; see COMMAND DOCS")


def require_name(name: bytes) -> None:
    """Refuse what is no name of a client."""
    if len(name) > MAX_NAME or any(byte <= 32 or byte > 126 for byte in name):
        raise WireError(
            f"ERR a client's name may have up to {MAX_NAME} characters, without spaces or newlines"
        )
