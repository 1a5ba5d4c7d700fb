"""Errors as RFC 9457 bodies: what was wrong, where, and what to do about it.

One table, for the hot path and for the framework.

A problem never looks like an answer: it has no `allowed`. `code` is for programs and does not change; `detail` is for
people.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from ...headers import process_time_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...errors import UsageError

JSON: Final = b"content-type: application/json\r\n"
PROBLEM: Final = b"content-type: application/problem+json\r\n"
TYPE: Final = "urn:headgate:problem:"
REDUCED_CAPACITY: Final = (
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)

_encode = msgspec.json.Encoder().encode


Reply: TypeAlias = tuple[int, bytes, bytes]
"""An answer, ready for the wire: status, header lines, body. The lines contain the content type, but no length and no
date."""


class ProblemType(NamedTuple):
    """A class of problems."""

    status: int
    code: str
    title: str


BAD_JSON: Final = ProblemType(400, "bad-json", "The body is not valid JSON")
BAD_VALUE: Final = ProblemType(422, "bad-value", "A value is invalid")
BAD_REQUEST: Final = ProblemType(400, "bad-request", "The request is invalid")
UNAUTHORIZED: Final = ProblemType(401, "unauthorized", "A token is needed")
FORBIDDEN: Final = ProblemType(403, "forbidden", "The token does not allow this")
NOT_FOUND: Final = ProblemType(404, "not-found", "Not found")
WRONG_METHOD: Final = ProblemType(405, "wrong-method", "Method not allowed")
TIMED_OUT: Final = ProblemType(408, "timed-out", "The request took too long to arrive")
TOO_LARGE: Final = ProblemType(413, "too-large", "The body is too large")
NOT_JSON: Final = ProblemType(415, "not-json", "The body must be JSON")
WRONG_HOST: Final = ProblemType(421, "wrong-host", "The request is for another host")
TOO_MANY: Final = ProblemType(429, "too-many-connections", "Too many connections from one address")
TOO_MANY_GUESSES: Final = ProblemType(
    429, "too-many-guesses", "Too many wrong tokens from this address"
)
FAILED: Final = ProblemType(500, "internal-error", "Internal error")
WHERE_TO_LOOK: Final = "the page /docs lists all endpoints"
OVERLOADED: Final = ProblemType(503, "overloaded", "Overloaded")
NO_ANSWER: Final = ProblemType(503, "store-unavailable", "The store does not answer")


class ProblemError(Exception):
    """A request that is refused. Nothing was counted."""

    def __init__(
        self,
        kind: ProblemType,
        detail: str,
        *,
        pointer: str | None = None,
        lines: bytes = b"",
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.pointer = pointer
        self.lines = lines

    def as_dict(self) -> dict[str, object]:
        """The body's fields."""
        kind = self.kind
        body: dict[str, object] = {
            "type": REDUCED_CAPACITY if kind in {NO_ANSWER, OVERLOADED} else TYPE + kind.code,
            "title": kind.title,
            "status": kind.status,
            "code": kind.code,
            "detail": self.detail,
        }
        if self.pointer is not None:
            body["errors"] = [{"pointer": self.pointer, "detail": self.detail}]
        return body

    def reply(self, took_ns: int = 0) -> Reply:
        """The whole answer."""
        lines = PROBLEM + self.lines + process_time_line(took_ns)
        return (self.kind.status, lines, _encode(self.as_dict()))


def store_unavailable(detail: str) -> ProblemError:
    """The store failed, and no rule defines what to do then."""
    return ProblemError(NO_ANSWER, detail, lines=b"retry-after: 1\r\n")


def overloaded() -> ProblemError:
    """There is too much load to answer in time."""
    detail = "the service is overloaded; the check was not made, try again later"
    return ProblemError(OVERLOADED, detail, lines=b"retry-after: 1\r\n")


def wrong_method(offered: Iterable[str]) -> ProblemError:
    """The address exists, but not with this method."""
    allow = ", ".join(sorted(offered))
    return ProblemError(
        WRONG_METHOD,
        f"this address takes {allow}; {WHERE_TO_LOOK}",
        lines=f"allow: {allow}\r\n".encode(),
    )


def usage_problem(error: UsageError) -> ProblemError:
    """An error of the library about an argument, as a problem that points to the field."""
    pointer = None if error.argument is None else f"#/{error.argument}"
    return ProblemError(BAD_VALUE, str(error), pointer=pointer)
