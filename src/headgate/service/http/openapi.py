"""OpenAPI of the check API.

The hot endpoints are not FastAPI routes, so their operations are written here, from the types that decode them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from fastapi.openapi.utils import get_openapi

from . import bodies

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ..settings import Settings

DESCRIPTION: Final = """\
Headgate decides whether a request may proceed. Ask `POST /check` before doing something that is limited; the answer \
says whether it may be done now, \
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


class ApiOperation(NamedTuple):
    """One endpoint of the check API."""

    path: str
    summary: str
    text: str
    """Its description; `{default}` is replaced by the default limit."""
    body: type[msgspec.Struct]
    example: dict[str, Any]
    answers: tuple[dict[str, Any], ...]
    schema: dict[str, Any]
    decides: bool = True


ANSWER: Final = {"$ref": REF.format(name="Answer")}
CHECK: Final = ApiOperation(
    "/check",
    "Take units for one key",
    "What is left out is as the service's settings say: {default}. A `cost` of 0 takes nothing. A cost "
    "that can never fit is denied with `never`, and without a time to try again.",
    bodies.CheckBody,
    {"key": "user:42", "limit": 100, "window": 60, "algorithm": "token_bucket", "burst": 20},
    (ALLOWED, DENIED),
    ANSWER,
)
BATCH: Final = ApiOperation(
    "/check/batch",
    "Several checks at once",
    f"1 to {bodies.MAX_BATCH} checks, each decided on its own; answers come in the same order. An error in one check "
    "is reported in its place, as `error`. The same key twice counts twice.",
    bodies.BatchBody,
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
DECIDE: Final = ApiOperation(
    "/decide",
    "Decide a request by the rules",
    "Every rule that matches applies; the request passes only if all of them have room, and a denied request is "
    "not charged. Leave out what you do not know. If no rule matches, it is allowed, and `limit` is null.",
    bodies.DecideBody,
    {"method": "POST", "path": "/login", "ip": "203.0.113.9", "headers": {"User-Agent": "curl"}},
    (
        {**ALLOWED, "key": "203.0.113.9", "limit": 5, "remaining": 4, "rule": "login"},
        {**DENIED, "key": "203.0.113.9", "limit": 5, "rule": "login"},
    ),
    ANSWER,
)
RESERVE: Final = ApiOperation(
    "/reserve",
    "Charge an estimate, to be settled later",
    "The answer has a `token` if it is allowed. Send it to `POST /settle` with what was really used; a reservation "
    "that is not settled within `ttl` seconds (600) stays charged.",
    bodies.ReserveBody,
    {"key": "user:42", "limit": 10000, "window": 60, "cost": 500, "ttl": 120},
    ({**ALLOWED, "limit": 10000, "remaining": 9500, "token": "4f0c9a2be1d34c7da1f0b7f1f4f0a3c2"},),
    ANSWER,
)
SETTLE: Final = ApiOperation(
    "/settle",
    "Settle the real cost of a reservation",
    "Less than the estimate is given back, more is charged even over the limit. `settled` is false when there is no "
    "such reservation any more.",
    bodies.SettleBody,
    {"token": "4f0c9a2be1d34c7da1f0b7f1f4f0a3c2", "actual": 420},
    ({"settled": True},),
    {"type": "object", "required": ["settled"], "properties": {"settled": {"type": "boolean"}}},
    decides=False,
)
ACQUIRE: Final = ApiOperation(
    "/acquire",
    "Hold a slot",
    "At most `limit` slots of a key are held at a time. The answer has a `token` if it is allowed; a slot that is "
    "neither released nor renewed is free again after `ttl` seconds (30). Sending the token of a held slot renews it.",
    bodies.AcquireBody,
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
RELEASE: Final = ApiOperation(
    "/release",
    "Release a slot",
    "Releasing a slot that is not held does nothing.",
    bodies.ReleaseBody,
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
    "RateLimit-Policy": 'The limit that decided: `"default";q=100;w=60`',
    "RateLimit": 'What is left of it, and until when: `"default";r=99;t=60`',
    "X-RateLimit-Limit": "Units per window",
    "X-RateLimit-Remaining": "Units left",
    "X-RateLimit-Reset": "When the key counts as unused, in seconds since 1970; absent if a retry can never pass",
    "X-RateLimit-Degraded": "The `source` of the answer; only if it is less exact than its limit promises",
    "Retry-After": "When a retry can pass, in seconds; only if denied, and not if it never can",
    "X-Process-Time": "Processing time in seconds, such as 0.000120s",
}


FIELDS: Final = {
    "key": "The key to count under, such as a user, an API key or an address. Up to 8,192 bytes.",
    "limit": "Units per window, or slots of `/acquire`.",
    "window": "Seconds.",
    "algorithm": "The algorithm; the front page lists the names.",
    "burst": "The size of the bucket, in units; with `token_bucket`.",
    "cost": "Units to take. Without it, 1.",
    "ttl": "Seconds until a reservation can no longer be settled, or a slot becomes free.",
    "token": "The unchanged `token` of an earlier answer.",
    "actual": "The real cost, in units.",
    "checks": f"1 to {bodies.MAX_BATCH:,} checks.",
    "method": "The request's method.",
    "path": "The request's path, with or without its query.",
    "ip": "The client's address, or that of a trusted proxy.",
    "user_id": "The user, as your application knows it.",
    "api_key": "The API key that came with the request.",
    "host": "The host that the request was for.",
    "headers": "The request's headers, as far as rules use them.",
    "descriptors": f"Pairs of name and value for rules, up to {bodies.MAX_DESCRIPTORS}.",
    "allowed": "Whether the request may proceed.",
    "remaining": "Units that could still be taken now; `null` when no rule limits the request.",
    "retry_after": "Seconds until a retry can pass; `null` if it never can.",
    "reset_after": "Seconds until the key counts as unused.",
    "backoff_level": "How far exponential backoff has tightened the limit.",
    "source": "Where the answer came from: `engine`, or what answered for it, such as `cache` or `ban`.",
    "rule": "The rule that the limit belongs to.",
    "never": "Whether the cost is more than the limit ever allows.",
    "degraded": "Whether the answer is less exact than the limit promises.",
    "reason": "Why a key is banned, limits are turned off, or a path was refused.",
    "rules": "The answer of every rule that applies, where there are several.",
}
"""The descriptions of the check API's fields, by name."""


def _describe_fields(component: dict[str, Any]) -> None:
    for name, field in component.get("properties", {}).items():
        if name in FIELDS and "$ref" not in field:
            field["description"] = FIELDS[name]


def describe(app: FastAPI, settings: Settings) -> None:
    """Add the check API, with the defaults in these settings, to FastAPI's own document."""
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
            kinds = [bodies.Answer, *(one.body for one in OPERATIONS)]
            _, components = msgspec.json.schema_components(kinds, ref_template=REF)
            schemas = whole.setdefault("components", {}).setdefault("schemas", {})
            for component in components.values():
                _describe_fields(component)
            schemas.update(components, Problem=PROBLEM_SCHEMA)
            paths = {one.path: {"post": _operation(one, default)} for one in OPERATIONS}
            whole["paths"] = {**paths, **whole.get("paths", {})}
            app.openapi_schema = whole
        return app.openapi_schema

    app.openapi = schema  # type: ignore[method-assign]


def _operation(one: ApiOperation, default: str) -> dict[str, Any]:
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
    "description": "`1` answers a denial with 429.",
    "schema": {"type": "string"},
}
_STATUS_HEADER: Final = {
    **_STATUS_QUERY,
    "name": "X-Headgate-Status",
    "in": "header",
}
