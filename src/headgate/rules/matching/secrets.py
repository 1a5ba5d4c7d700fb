"""Secrets in requests, and the digests that are stored, listed and logged instead.

An API key must not appear in a store, in a list of keys or in a log, so it is counted under a digest. The digest is
the same on every node and never changes, so that rules can name it. It protects only secrets that cannot be guessed,
such as random keys.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..model import IdentifierPart

SECRET_HEADERS: Final = frozenset(
    {
        *("authorization", "proxy-authorization", "cookie"),
        *("api-key", "x-api-key", "x-auth-token", "x-access-token"),
    }
)
"""Headers whose values are secrets, in lower case."""

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{32}")


def digest_of(secret: str) -> str:
    """What a secret is called where others can read it.

    >>> digest_of("k-1")
    'sha256:7c35c5a1785d20704e44d5de4beb81c1'
    """
    return f"sha256:{sha256(secret.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def is_digest(text: str) -> bool:
    """Whether this is how a secret is called."""
    return _DIGEST.fullmatch(text) is not None


def is_secret(part: IdentifierPart) -> bool:
    """Whether the values of this part of an identifier are secrets."""
    return part.kind == "api_key" or (part.kind == "header" and part.name in SECRET_HEADERS)
