"""OpenAPI of the check API.

The hot endpoints are no FastAPI routes, so their operations are written here, from the same types that decode them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from fastapi.openapi.utils import get_openapi

from . import wire

if TYPE_CHECKING:
    from fastapi import FastAPI

    from .settings import Settings

DESCRIPTION: Final = """\
Headgate decides who may go on. Ask `POST /check` before doing something that is limited; the answer says whether it may be done now, \
and if not, when.

A denial is an answer: it has the status 200 and `"allowed": false`, or 429 for those who send `?status=1` or \
`X-Headgate-Status: 1`. Errors are problems (RFC 9457) and have counted nothing.
"""
REF: Final = "#/components/schemas/{name}"
ALLOWED: Final = {
    "key": "user:42",
    "allowed": True,
    "limit": 100,
    "remaining": 99,
    "algorithm": "sliding_window",
    "retry_after": 0.0,
    "reset_after": 60.0,
    "backoff_level": 0,
    "source": "engine",
}
DENIED: Final = {
    **ALLOWED,
    "allowed": False,
    "remaining": 0,
    "retry_after": 12.4,
    "reset_after": 41.0,
}


class Operation(NamedTuple):
    """One endpoint of the check API."""

    path: str
    summary: str
    text: str
    """What it does; `{default}` stands for what holds if nothing is said."""
    body: type[msgspec.Struct]
    example: dict[str, Any]
    answers: tuple[dict[str, Any], ...]
    schema: dict[str, Any]
    decides: bool = True


ANSWER: Final = {"$ref": REF.format(name="Answer")}
CHECK: Final = Operation(
    "/check",
    "Take units for one key",
    "What is left out is as the service's settings say: {default}. A `cost` of 0 takes nothing. A cost "
    "that can never fit is denied with `never`, and without a time to try again.",
    wire.Check,
    {"key": "user:42", "limit": 100, "window": 60, "algorithm": "token_bucket", "burst": 20},
    (ALLOWED, DENIED),
    ANSWER,
)
BATCH: Final = Operation(
    "/check/batch",
    "Several checks at once",
    f"1 to {wire.MAX_BATCH} checks, each decided on its own; answers come in the same order. What is wrong with one check is told in its "
    "place, as `error`. The same key twice counts twice.",
    wire.Batch,
    {"checks": [{"key": "user:42"}, {"key": "user:43", "cost": 5}]},
    ({"decisions": [ALLOWED, {**ALLOWED, "key": "user:43", "remaining": 95}]},),
    {
        "type": "object",
        "required": ["decisions"],
        "properties": {
            "decisions": {
                "type": "array",
                "items": {
                    "anyOf": [
                        ANSWER,
                        {
                            "type": "object",
                            "required": ["error"],
                            "properties": {"error": {"$ref": REF.format(name="Problem")}},
                        },
                    ]
                },
            }
        },
    },
    decides=False,
)
DECIDE: Final = Operation(
    "/decide",
    "Put a request to the rules",
    "Every rule that matches applies; the request passes only if all of them have room, and one that is denied is charged nowhere. Leave "
    "out what you do not know. Without a rule that matches, it is allowed, and `limit` is null.",
    wire.Decide,
    {"method": "POST", "path": "/login", "ip": "203.0.113.9", "headers": {"User-Agent": "curl"}},
    (
        {**ALLOWED, "key": "203.0.113.9", "limit": 5, "remaining": 4, "rule": "login"},
        {**DENIED, "key": "203.0.113.9", "limit": 5, "rule": "login"},
    ),
    ANSWER,
)
RESERVE: Final = Operation(
    "/reserve",
    "Charge an estimate, to be settled later",
    "The answer has a `token` if it is allowed. `POST /settle` with it tells what was really used; a reservation that is not settled within "
    "`ttl` seconds (600) stays charged.",
    wire.Reserve,
    {"key": "user:42", "limit": 10000, "window": 60, "cost": 500, "ttl": 120},
    ({**ALLOWED, "limit": 10000, "remaining": 9500, "token": "4f0c9a2be1d34c7da1f0b7f1f4f0a3c2"},),
    ANSWER,
)
SETTLE: Final = Operation(
    "/settle",
    "Tell what a reservation really cost",
    "Less than the estimate is given back, more is charged even over the limit. `settled` is false when there is no such reservation any more.",
    wire.Settle,
    {"token": "4f0c9a2be1d34c7da1f0b7f1f4f0a3c2", "actual": 420},
    ({"settled": True},),
    {"type": "object", "required": ["settled"], "properties": {"settled": {"type": "boolean"}}},
    decides=False,
)
ACQUIRE: Final = Operation(
    "/acquire",
    "Hold a slot",
    "At most `limit` slots of a key are held at a time. The answer has a `token` if it is allowed; a slot that is neither let go nor renewed is "
    "free again after `ttl` seconds (30). Sending the token of a slot that is held renews it.",
    wire.Acquire,
    {"key": "reports", "limit": 10, "ttl": 30},
    (
        {
            **ALLOWED,
            "key": "reports",
            "limit": 10,
            "remaining": 9,
            "algorithm": "concurrency",
            "token": "9d1c",
        },
    ),
    ANSWER,
)
RELEASE: Final = Operation(
    "/release",
    "Let a slot go",
    "A slot that is not held (any more) is let go of already.",
    wire.Release,
    {"key": "reports", "token": "9d1c"},
    ({"released": True},),
    {"type": "object", "required": ["released"], "properties": {"released": {"type": "boolean"}}},
    decides=False,
)
OPERATIONS: Final = (CHECK, BATCH, DECIDE, RESERVE, SETTLE, ACQUIRE, RELEASE)

PROBLEM_SCHEMA: Final = {
    "title": "Problem",
    "type": "object",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "For programs; it does not change."},
        "detail": {"type": "string", "description": "For people: what, and the remedy."},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["pointer", "detail"],
                "properties": {"pointer": {"type": "string"}, "detail": {"type": "string"}},
            },
        },
    },
}
PROBLEMS: Final = {
    "400": "The body is not JSON, or has a field twice",
    "413": "The body is too large",
    "415": "The body is not sent as JSON",
    "422": "A value cannot be used",
    "503": "The store does not answer",
}
HEADERS: Final = {
    "RateLimit-Policy": 'The limit that spoke: `"default";q=100;w=60`',
    "RateLimit": 'What is left of it, and until when: `"default";r=99;t=60`',
    "X-RateLimit-Limit": "Units per window",
    "X-RateLimit-Remaining": "Units left",
    "X-RateLimit-Reset": "When the key is as new, in seconds since 1970; not if it never passes",
    "Retry-After": "When a retry can pass, in seconds; only if denied, and not if it never can",
    "X-Process-Time": "Seconds that the answer took",
}


def describe(app: FastAPI, settings: Settings) -> None:
    """Add the check API, as these settings make it, to what FastAPI knows of its own routes."""
    default = (
        f"{settings.default_limit} units in {settings.default_window:g} s, "
        f"counted by `{settings.default_algorithm}`"
    )

    def schema() -> dict[str, Any]:
        if app.openapi_schema is None:
            whole = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
            )
            kinds = [wire.Answer, *(one.body for one in OPERATIONS)]
            _, components = msgspec.json.schema_components(kinds, ref_template=REF)
            schemas = whole.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(components, Problem=PROBLEM_SCHEMA)
            paths = {one.path: {"post": _operation(one, default)} for one in OPERATIONS}
            whole["paths"] = {**paths, **whole.get("paths", {})}
            app.openapi_schema = whole
        return app.openapi_schema

    app.openapi = schema  # type: ignore[method-assign]


def _operation(one: Operation, default: str) -> dict[str, Any]:
    answer = {
        "application/json": {
            "schema": one.schema,
            "examples": {
                f"answer {at}": {"value": value} for at, value in enumerate(one.answers, 1)
            },
        }
    }
    responses: dict[str, Any] = {
        "200": {"description": "The answer", "content": answer},
    }
    if one.decides:
        headers = {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in HEADERS.items()
        }
        responses["200"]["headers"] = headers
        responses["429"] = {
            "description": "Denied, for those who asked for it as a status",
            "headers": headers,
            "content": answer,
        }
    problem = {"application/problem+json": {"schema": {"$ref": REF.format(name="Problem")}}}
    for status, text in PROBLEMS.items():
        responses[status] = {"description": text, "content": problem}
    return {
        "tags": ["checks"],
        "summary": one.summary,
        "description": one.text.replace("{default}", default),
        "operationId": one.path.strip("/").replace("/", "_"),
        "parameters": [_STATUS_QUERY, _STATUS_HEADER] if one.decides else [],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"$ref": REF.format(name=one.body.__name__)},
                    "example": one.example,
                }
            },
        },
        "responses": responses,
    }


_STATUS_QUERY: Final = {
    "name": "status",
    "in": "query",
    "required": False,
    "description": "`1` tells a denial as 429.",
    "schema": {"type": "string"},
}
_STATUS_HEADER: Final = {
    **_STATUS_QUERY,
    "name": "X-Headgate-Status",
    "in": "header",
}
