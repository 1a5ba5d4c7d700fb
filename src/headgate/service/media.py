"""Content types: which bodies are JSON."""

from __future__ import annotations

from typing import Final

WANTS_JSON: Final = (
    "send the body as JSON, with 'Content-Type: application/json' and no Content-Encoding"
)


def is_json(content_type: str) -> bool:
    """Whether a content type names JSON in UTF-8.

    >>> is_json("application/json; charset=UTF-8"), is_json("text/plain"), is_json("")
    (True, False, False)
    """
    kind, *parameters = (part.strip().lower() for part in content_type.split(";"))
    charsets = [
        value.strip('" ')
        for name, _, value in (one.partition("=") for one in parameters)
        if name.strip() == "charset"
    ]
    return kind == "application/json" and all(one == "utf-8" for one in charsets)
