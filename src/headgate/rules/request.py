"""Request: the description of one HTTP request, before any decision."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .matching.paths import BadPathError, canonical_path
from .model import NOTHING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Request:
    """The attributes of a call that rules can look at. Leave out what you do not know.

    >>> Request("GET", "/api/users/7?page=2", ip="203.0.113.9", headers={"X-Team": "blue"})
    Request('GET', '/api/users/7?page=2', ip='203.0.113.9')
    """

    method: str = "GET"
    path: str = "/"
    """As the client sent it; what follows `?` or `#` is not looked at."""
    ip: str | None = None
    """The client's address, from a trusted source; not from a header that any client can send."""
    user_id: str | None = None
    """Who it is, if that has been proven; this is what "authenticated" means to a rule."""
    api_key: str | None = None
    host: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """Names in any case. A header that came several times is one, its values joined with commas."""
    descriptors: tuple[tuple[str, str], ...] = ()
    """Envoy's pairs of key and value."""
    cost: int | None = None
    """What the caller says it costs; wins over the rule's own."""

    @property
    def path_refused(self) -> str | None:
        """Why the path cannot be read, in words; `None` if it can.

        Limiters deny such a request, unless told to let rules without a path pattern decide it (`bad_paths="pass"`).

        >>> Request("GET", "/login%00").path_refused
        'a path may not have control characters, and %00 is one'
        """
        try:
            canonical_path(self.path)
        except BadPathError as refused:
            return str(refused)
        return None

    def __repr__(self) -> str:
        known = [
            f"{name}={value!r}"
            for name in ("ip", "user_id", "host")
            if (value := getattr(self, name)) is not None
        ]
        return f"Request({', '.join([repr(self.method), repr(self.path), *known])})"
