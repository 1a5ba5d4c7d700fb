"""Secrets that requests bring along, and what is stored, listed and logged in their place.

Whoever has an API key is its owner, so it must not lie in a store, in a list of keys or in a log. Such a value is counted
under a digest of it. The digest is the same everywhere and for ever, so that nodes agree and rules can name it; it hides
what cannot be guessed, as keys that were drawn at random cannot.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .model import Part

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


def is_secret(part: Part) -> bool:
    """Whether the values of this part of an identifier are secrets."""
    return part.kind == "api_key" or (part.kind == "header" and part.name in SECRET_HEADERS)
