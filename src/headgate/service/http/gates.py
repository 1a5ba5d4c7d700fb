"""Gates: what is checked before anything else of a request is read.

The fast path, the ASGI routes and management use the same ones.

The order is the same everywhere: whether the caller has access, whether the body is JSON, whether it is too large. A
caller without access learns nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .problems import (
    BAD_REQUEST,
    FORBIDDEN,
    NOT_JSON,
    TOO_LARGE,
    TOO_MANY_GUESSES,
    UNAUTHORIZED,
    WRONG_HOST,
    ProblemError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.requests import Request

    from ..security.auth import Auth, Caller
    from ..security.tokens import Role

WANTS_JSON: Final = (
    "send the body as JSON, with 'Content-Type: application/json' and no Content-Encoding"
)
CLOSE: Final = b"connection: close\r\n"
BEARER: Final = b"www-authenticate: Bearer\r\n"
MAX_DIGITS: Final = 15
"""A length with more digits is certainly too large."""


def require_checker(auth: Auth, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse checks without a required token, and those sent by the pages of other sites."""
    shown = authorization_of(headers)
    if not auth.may_check(shown):
        text = "checks need a token here; send it as 'Authorization: Bearer …'"
        raise ProblemError(UNAUTHORIZED, text, lines=BEARER)
    if not auth.allows_origins(headers):
        raise ProblemError(
            WRONG_HOST,
            "the Origin header does not name this service; add other hosts to the setting allowed_hosts",
        )


def require_caller(auth: Auth, request: Request, role: Role) -> Caller:
    """The caller of a management request, if the host is right and the caller has this role."""
    headers = request.scope["headers"]
    hosts = [value for name, value in headers if name == b"host"]
    if not all(map(auth.allows_host, hosts or [None])):
        raise ProblemError(
            WRONG_HOST,
            "the Host header does not name this service; add other hosts to the setting allowed_hosts",
        )
    shown = authorization_of(headers)
    address = "" if request.client is None else request.client.host
    caller = auth.caller(shown, address)
    if caller is None:
        wait = 0.0 if shown is None else auth.guess_failed(address)
        if wait:
            after = f"retry-after: {int(wait) + 1}\r\n".encode()
            raise ProblemError(TOO_MANY_GUESSES, "wait, and use the right token", lines=after)
        text = "send the header 'Authorization: Bearer TOKEN'"
        raise ProblemError(UNAUTHORIZED, text, lines=BEARER)
    if not caller.may(role):
        raise ProblemError(FORBIDDEN, f"this needs a token with the role {role}")
    return caller


def require_json(fields: Mapping[bytes, bytes], limit: int) -> None:
    """Refuse bodies that are not JSON, or that announce more than `limit` bytes."""
    media = fields.get(b"content-type", b"")
    if media != b"application/json" and not is_json(media.decode("latin-1")):
        raise ProblemError(NOT_JSON, WANTS_JSON)
    if fields.get(b"content-encoding", b"identity").lower() != b"identity":
        raise ProblemError(NOT_JSON, WANTS_JSON)
    length = fields.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > MAX_DIGITS or int(length) > limit:
        raise too_large(limit)


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a request, if it is JSON and not too large; never reads beyond that."""
    require_json(dict(request.scope["headers"]), limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise too_large(limit)
    return bytes(body)


def too_large(limit: int) -> ProblemError:
    """The body is too large; the rest of it is not read."""
    return ProblemError(TOO_LARGE, f"a body may have at most {limit} bytes", lines=CLOSE)


def authorization_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The raw `Authorization` header.

    Two of them are refused: a proxy in front may have used the other one.
    """
    shown = [value for name, value in headers if name == b"authorization"]
    if len(shown) > 1:
        raise ProblemError(BAD_REQUEST, "a request may have only one Authorization header")
    return shown[0] if shown else None


def is_json(content_type: str) -> bool:
    """Whether a content type is JSON in UTF-8.

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
