"""Test cases: requests and their expected results, next to the rules under `tests:`.

    tests:
      - name: the sixth try to log in within a minute is one too many
        request: {method: POST, path: /login, ip: 203.0.113.9}
        matches: [login, every-client]
        steps:
          - {hits: 5, allowed: true, remaining: 0}
          - {allowed: false, denied_by: login, retry_after: 60}
          - {after: 60s, allowed: true}

A case starts with all counts at zero. Its request is sent `hits` times, and the expectations are for the last hit.
Steps share one clock, which only `after` moves. This module reads cases; `headgate.testing.cases` runs them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ...algorithms.base import MAX_EXACT
from ...rate import UNIT_NAMES, US_PER_UNIT
from ..request import Request
from .composite_types import ListType, MappingType, OneOfType, RuleField, SectionType
from .error_collector import ErrorCollector
from .field_types import BooleanType, IntegerType, NumberType, TextType
from .problems import RulesError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .error_collector import At
    from .parse import Case, Parsed

MAX_HITS: Final = 100_000
MAX_SECONDS: Final = 366 * 86_400
NEVER: Final = "never"

_DURATION: Final = re.compile(r"([0-9]{1,12}) *([a-z]{1,12})")
_RULE_ID: Final = TextType(high=256)
_SECONDS: Final = OneOfType(
    number=NumberType(0, MAX_SECONDS), text=TextType(high=40, called="duration")
)
_ANY_TEXT: Final = TextType(low=0, high=8_192)

REQUEST: Final = SectionType(
    "request",
    [
        RuleField(
            name="method", kind=TextType(), about="Its method.", default="GET", example="POST"
        ),
        RuleField(
            name="path",
            kind=TextType(low=0, high=10_000),
            about="Its path, as the client sends it.",
            default="/",
            example="/login?next=/",
        ),
        RuleField(name="ip", kind=TextType(), about="The client's address.", example="203.0.113.9"),
        RuleField(name="user_id", kind=_ANY_TEXT, about="The authenticated user.", example="42"),
        RuleField(name="api_key", kind=_ANY_TEXT, about="The API key.", example="k-1"),
        RuleField(
            name="host", kind=TextType(), about="The requested host.", example="api.example.com"
        ),
        RuleField(
            name="headers",
            kind=MappingType(TextType(), _ANY_TEXT, 100),
            about="Its headers.",
            example={"X-Team": "blue"},
        ),
        RuleField(
            name="descriptors",
            kind=MappingType(TextType(), _ANY_TEXT, 64),
            about="Envoy's descriptors.",
            example={"tenant": "acme"},
        ),
        RuleField(name="cost", kind=IntegerType(0, MAX_EXACT), about="Its cost.", example=5),
    ],
)
_EXPECTED: Final = [
    RuleField(
        name="matches",
        kind=ListType(_RULE_ID, 0, 1_000),
        about="The rules that apply, in order, including shadows.",
        example=["login", "every-client"],
    ),
    RuleField(
        name="allowed", kind=BooleanType(), about="Whether the last hit passes.", example=False
    ),
    RuleField(name="denied_by", kind=_RULE_ID, about="The rule that denies it.", example="login"),
    RuleField(
        name="remaining",
        kind=IntegerType(0, MAX_EXACT),
        about="Units left for the rule that decides.",
        example=0,
    ),
    RuleField(
        name="retry_after",
        kind=_SECONDS,
        about="Time until a retry can pass: seconds, a duration such as `30s`, or `never`.",
        example="30s",
    ),
    RuleField(name="key", kind=_ANY_TEXT, about="The key of the rule that decides.", example="42"),
    RuleField(
        name="shadow_denied_by",
        kind=ListType(_RULE_ID, 0, 1_000),
        about="The shadows that would deny it.",
        example=["search-on-trial"],
    ),
]
_ACTS: Final = [
    RuleField(name="request", kind=REQUEST, about="The request to send.", example={"path": "/"}),
    RuleField(
        name="hits",
        kind=IntegerType(1, MAX_HITS),
        about="How often it is sent; the expectations apply to the last hit.",
        default="1",
        example=5,
    ),
]
STEP: Final = SectionType(
    "step",
    [
        RuleField(
            name="after",
            kind=_SECONDS,
            about="The time that passes before this step: seconds, or a duration such as `30s`.",
            default="none",
            example="30s",
        ),
        *_ACTS,
        *_EXPECTED,
    ],
)
CASE: Final = SectionType(
    "test",
    [
        RuleField(
            name="name", kind=TextType(), about="What the case shows.", example="logging in is slow"
        ),
        RuleField(
            name="at",
            kind=TextType(high=40),
            about="The start time, for calendar windows.",
            example="2026-01-31T23:59:00Z",
        ),
        *_ACTS,
        *_EXPECTED,
        RuleField(
            name="steps",
            kind=ListType(STEP, 1, 1_000),
            about="Several steps on one clock; a step's request extends the case's request.",
            example=[{"hits": 5, "allowed": True}],
        ),
    ],
)
EXPECTED: Final = tuple(field.name for field in _EXPECTED)


@dataclass(frozen=True, slots=True)
class CaseStep:
    """One request, sent `hits` times, and what is expected of the last one."""

    request: Request
    hits: int
    after_us: int
    expected: Mapping[str, Any]
    """By field; durations in seconds, `math.inf` for never."""


@dataclass(frozen=True, slots=True)
class RuleCase:
    """One parsed case."""

    name: str
    file: str
    line: int
    at_us: int | None
    steps: tuple[CaseStep, ...]


def read_cases(parsed: Parsed) -> tuple[RuleCase, ...]:
    """All cases of a file; raises `RulesError` with all of their errors."""
    known = {rule.rule_id for rule in parsed.rules}
    errors = {case.file: ErrorCollector(case.document) for case in parsed.cases}
    cases = [_case(case, known, errors[case.file]) for case in parsed.cases]
    problems = [problem for found in errors.values() for problem in found.problems()]
    if problems:
        raise RulesError(problems)
    return tuple(case for case in cases if case is not None)


def _case(case: Case, known: set[str], errors: ErrorCollector) -> RuleCase | None:
    at: At = ((None, "tests"), case.index)
    before = errors.count
    written = case.value
    CASE.check(written, at, errors)
    if errors.count > before:
        return None
    given = {name: value for name, value in written.items() if value is not None}
    steps = given.pop("steps", None)
    name = given.pop("name", case.path)
    at_us = _moment(given.pop("at", None), (at, "at"), errors)
    request = given.pop("request", {})
    if steps is None:
        read = [_step({**given, "request": request}, {}, at, known, errors)]
    else:
        for field in given:
            errors.add(
                (at, field), f"`{field}` cannot be combined with `steps`", "move it into a step"
            )
        read = [
            _step(step, request, ((at, "steps"), i), known, errors) for i, step in enumerate(steps)
        ]
    return RuleCase(name, case.file, case.line, at_us, tuple(read))


def _step(
    given: Mapping[str, Any],
    request: Mapping[str, Any],
    at: At,
    known: set[str],
    errors: ErrorCollector,
) -> CaseStep:
    expected = {name: given[name] for name in EXPECTED if given.get(name) is not None}
    if not expected:
        names = ", ".join(EXPECTED[:4])
        errors.add(at, "it expects nothing", f"add an expectation: {names} or similar")
    named = [*expected.get("matches", ()), *expected.get("shadow_denied_by", ())]
    for rule_id in [*named, *([expected["denied_by"]] if "denied_by" in expected else [])]:
        if rule_id not in known:
            errors.add(at, f"there is no rule {rule_id!r}", "name one that is in the file")
    if "retry_after" in expected:
        retry_after = expected["retry_after"]
        expected["retry_after"] = (
            math.inf
            if retry_after == NEVER
            else _microseconds(retry_after, (at, "retry_after"), errors) / 1_000_000
        )
    after_us = _microseconds(given.get("after") or 0, (at, "after"), errors)
    own = given.get("request") or {}
    return CaseStep(_request({**request, **own}), given.get("hits") or 1, after_us, expected)


def _request(written: Mapping[str, Any]) -> Request:
    given = {name: value for name, value in written.items() if value is not None}
    if "descriptors" in given:
        given["descriptors"] = tuple(given["descriptors"].items())
    return Request(**given)


def _microseconds(written: float | str, at: At, errors: ErrorCollector) -> int:
    if not isinstance(written, str):
        return round(written * 1_000_000)
    found = _DURATION.fullmatch(written.strip().lower())
    unit = found and (UNIT_NAMES.get(found[2]) or UNIT_NAMES.get(found[2].removesuffix("s")))
    if not found or not unit:
        errors.add(at, f"{written!r} is not a duration", "write seconds, or 30s, 5 minutes, 250ms")
        return 0
    duration_us = int(found[1]) * US_PER_UNIT[unit]
    if duration_us > MAX_SECONDS * 1_000_000:
        errors.add(at, f"{written!r} is longer than a year", "write a shorter one")
        return 0
    return duration_us


def _moment(written: str | None, at: At, errors: ErrorCollector) -> int | None:
    if written is None:
        return None
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        errors.add(at, f"{written!r} is not a time", "write it like 2026-01-31T23:59:00Z")
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000_000)
