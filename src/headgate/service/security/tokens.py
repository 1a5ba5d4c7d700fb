"""Access tokens. A file holds their hashes, never the tokens.

A token is 256 bits of system randomness, so its SHA-256 can be stored openly: nobody finds a token by trying, however
fast the hash is. A slow hash (scrypt) is for passwords, which people choose; here it would only let strangers cost the
service a twentieth of a second per guess.

    {"format": 1, "tokens": [{"name": "ann", "role": "operator", "sha256": "…", "created_at": "…", "expires_at": null}]}

Instead of a file, the hashes can be given as text: `sha256:operator:ann:<hex>`, separated by commas.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from ..._atomic_file import replace_file
from ...errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

Role: TypeAlias = Literal["checker", "viewer", "operator", "admin"]
"""Each includes those before it: send checks; look; reset, ban and override; change rules."""

ROLES: Final[tuple[Role, ...]] = get_args(Role)
PREFIX: Final = "hg_"
INLINE: Final = "sha256:"
MAX_FILE: Final = 1_048_576
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token's name, role and hash."""

    name: str
    role: Role
    sha256: str
    created_at: str = ""
    expires_at: str | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and _NAME.fullmatch(self.name)):
            raise ConfigError(
                f"{self.name!r:.80} is not a valid token name; use up to 64 letters, digits and . _ @ -"
            )
        if self.role not in ROLES:
            raise ConfigError(f"{self.role!r:.80} is not a role; the roles are {', '.join(ROLES)}")
        if not (isinstance(self.sha256, str) and _DIGEST.fullmatch(self.sha256)):
            raise ConfigError(f"the token {self.name!r} has no hash of 64 hexadecimal digits")
        if self.expires_at is not None:
            _moment(self.expires_at)

    def is_valid_at(self, now: datetime) -> bool:
        """Whether it has not expired."""
        return self.expires_at is None or now < _moment(self.expires_at)


def new_token(
    name: str, role: Role, *, now: datetime, expires: datetime | None = None
) -> tuple[str, Token]:
    """A new token: the text, to be shown once, and its record."""
    text = PREFIX + secrets.token_urlsafe(32)
    until = None if expires is None else _text(expires)
    kept = Token(
        name=name, role=role, sha256=digest_of(text), created_at=_text(now), expires_at=until
    )
    return text, kept


def digest_of(token: str) -> str:
    """The stored hash of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_tokens(source: str) -> tuple[Token, ...]:
    """The tokens in a file, or in the text itself; every mistake is a `ConfigError`."""
    if source.startswith(INLINE):
        return _checked([_inline(part.strip()) for part in source.split(",")], "the setting")
    try:
        with Path(source).open("rb") as file:
            text = file.read(MAX_FILE + 1)
        if len(text) > MAX_FILE:
            raise ConfigError(f"{source}: a token file may have at most {MAX_FILE} bytes")
        return _checked([Token(**one) for one in json.loads(text)["tokens"]], source)
    except OSError as error:
        raise ConfigError(
            f"{source}: the tokens cannot be read: {error.strerror}; check the path and its permissions, or make the "
            "file with 'headgate token create'"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{source} is not a token file; 'headgate token create' makes one"
        ) from None


def write_tokens(path: Path, tokens: Iterable[Token]) -> None:
    """Rewrite the file, readable by its owner only; a crash leaves the old one or the new one."""
    rows: list[dict[str, Any]] = [asdict(one) for one in tokens]
    text = json.dumps({"format": 1, "tokens": rows}, indent=2) + "\n"
    try:
        replace_file(path, text.encode(), private=True)
    except OSError as error:
        raise ConfigError(f"{path}: the tokens cannot be written: {error.strerror}") from None


def added(tokens: tuple[Token, ...], token: Token) -> tuple[Token, ...]:
    """The tokens plus this one; names must be unique."""
    if any(one.name == token.name for one in tokens):
        raise UsageError(f"there is already a token named {token.name!r}; revoke it first")
    return (*tokens, token)


def without(tokens: tuple[Token, ...], name: str) -> tuple[Token, ...]:
    """The tokens without this one."""
    left = tuple(one for one in tokens if one.name != name)
    if len(left) == len(tokens):
        raise UsageError(f"no token is named {name!r:.80}; 'headgate token list' shows them")
    return left


def _inline(text: str) -> Token:
    parts = text.split(":")
    if len(parts) != 4:
        raise ConfigError(
            "an inline token has the form sha256:ROLE:NAME:HASH; 'headgate token create --inline' prints one"
        )
    _, role, name, digest = parts
    return Token(name=name, role=role, sha256=digest)  # type: ignore[arg-type]  # Checked there.


def _checked(tokens: list[Token], source: str) -> tuple[Token, ...]:
    names = [one.name for one in tokens]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigError(f"{source}: the name {min(twice)!r} is used by two tokens")
    return tuple(tokens)


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except (ValueError, TypeError):
        raise ConfigError(f"{text!r:.80} is not a time such as 2027-01-31T12:00:00Z") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
