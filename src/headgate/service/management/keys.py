"""Keys in addresses: arbitrary text, percent-encoded.

Starlette's `path` converter stops at a line feed, which a key may contain; and invalid UTF-8 arrives as U+FFFD, which
is another key than intended. So keys have their own converter, `{key:key}`, and an address that is not text is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote_to_bytes

from fastapi import Path
from starlette.convertors import Convertor, register_url_convertor

from ..http.problems import BAD_REQUEST, ProblemError

if TYPE_CHECKING:
    from starlette.requests import Request

Key = Annotated[str, Path(min_length=1, max_length=8_192, description="The key, percent-encoded.")]


class KeyConvertor(Convertor[str]):
    """Matches everything up to the end."""

    regex = r"(?s:.*)"

    def convert(self, value: str) -> str:
        """Unchanged."""
        return value

    def to_string(self, value: str) -> str:
        """Unchanged."""
        return value


register_url_convertor("key", KeyConvertor())


def require_text(request: Request) -> None:
    """Refuse an address that is not UTF-8 after percent-decoding."""
    scope = request.scope
    try:
        for part in (scope.get("raw_path") or b"", scope["query_string"]):
            unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise ProblemError(
            BAD_REQUEST, "the address is not UTF-8; encode the bytes of UTF-8 with percent signs"
        ) from None
