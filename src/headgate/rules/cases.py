"""Cases: requests and what must come of them, written beside the rules under `tests:`.

    tests:
      - name: the sixth try to log in within a minute is one too many
        request: {method: POST, path: /login, ip: 203.0.113.9}
        matches: [login, every-client]
        steps:
          - {hits: 5, allowed: true, remaining: 0}
          - {allowed: false, denied_by: login, retry_after: 60}
          - {after: 60s, allowed: true}

A case begins with nobody counted. Its request is sent `hits` times, and what is expected is expected of the last of them.
Steps follow each other on one clock, which only `after` moves. This module reads; `headgate.testing.cases` runs.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ..algorithms.base import MAX_EXACT
from ..rate import UNIT_NAMES, US_PER_UNIT
from .faults import Faults
from .kinds import Flag, Number, Text, Whole
from .problem import RulesError
from .request import Request
from .sections import Each, Field, Section, Shapes, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .faults import At
    from .parse import Case, Parsed

MAX_HITS: Final = 100_000
MAX_SECONDS: Final = 366 * 86_400
NEVER: Final = "never"

_DURATION: Final = re.compile(r"([0-9]{1,12}) *([a-z]{1,12})")
_RULE_ID: Final = Text(high=256)
_SECONDS: Final = Shapes(number=Number(0, MAX_SECONDS), text=Text(high=40, called="duration"))
_ANY_TEXT: Final = Text(low=0, high=8_192)

REQUEST: Final = Section(
    "request",
    [
        Field(name="method", kind=Text(), about="Its method.", default="GET", example="POST"),
        Field(
            name="path",
            kind=Text(low=0, high=10_000),
            about="Its path, as the client sends it.",
            default="/",
            example="/login?next=/",
        ),
        Field(name="ip", kind=Text(), about="The client's address.", example="203.0.113.9"),
        Field(name="user_id", kind=_ANY_TEXT, about="Who it is, if that was proven.", example="42"),
        Field(name="api_key", kind=_ANY_TEXT, about="The key it came with.", example="k-1"),
        Field(name="host", kind=Text(), about="The host it is for.", example="api.example.com"),
        Field(
            name="headers",
            kind=Table(Text(), _ANY_TEXT, 100),
            about="Its headers.",
            example={"X-Team": "blue"},
        ),
        Field(
            name="descriptors",
            kind=Table(Text(), _ANY_TEXT, 64),
            about="Envoy's descriptors.",
            example={"tenant": "acme"},
        ),
        Field(name="cost", kind=Whole(0, MAX_EXACT), about="What it costs.", example=5),
    ],
)
_EXPECTED: Final = [
    Field(
        name="matches",
        kind=Each(_RULE_ID, 0, 1_000),
        about="The rules that apply, in order, shadows among them.",
        example=["login", "every-client"],
    ),
    Field(name="allowed", kind=Flag(), about="Whether the last hit passes.", example=False),
    Field(name="denied_by", kind=_RULE_ID, about="The rule that denies it.", example="login"),
    Field(
        name="remaining",
        kind=Whole(0, MAX_EXACT),
        about="What the rule that speaks has left.",
        example=0,
    ),
    Field(
        name="retry_after",
        kind=_SECONDS,
        about="When it may come again: seconds, a duration such as `30s`, or `never`.",
        example="30s",
    ),
    Field(name="key", kind=_ANY_TEXT, about="Whom the rule that speaks counts.", example="42"),
    Field(
        name="shadow_denied_by",
        kind=Each(_RULE_ID, 0, 1_000),
        about="The shadows that would deny it.",
        example=["search-on-trial"],
    ),
]
_ACTS: Final = [
    Field(name="request", kind=REQUEST, about="What is sent.", example={"path": "/"}),
    Field(
        name="hits",
        kind=Whole(1, MAX_HITS),
        about="How often it is sent; what is expected is expected of the last one.",
        default="1",
        example=5,
    ),
]
STEP: Final = Section(
    "step",
    [
        Field(
            name="after",
            kind=_SECONDS,
            about="How much time passes before: seconds, or a duration such as `30s`.",
            default="none",
            example="30s",
        ),
        *_ACTS,
        *_EXPECTED,
    ],
)
CASE: Final = Section(
    "test",
    [
        Field(name="name", kind=Text(), about="What it shows.", example="logging in is slow"),
        Field(
            name="at",
            kind=Text(high=40),
            about="When it begins, for calendar windows.",
            example="2026-01-31T23:59:00Z",
        ),
        *_ACTS,
        *_EXPECTED,
        Field(
            name="steps",
            kind=Each(STEP, 1, 1_000),
            about="Several steps on one clock; a step's request adds to that of the case.",
            example=[{"hits": 5, "allowed": True}],
        ),
    ],
)
EXPECTED: Final = tuple(field.name for field in _EXPECTED)


@dataclass(frozen=True, slots=True)
class CaseStep:
    """One request, sent so many times, and what is expected of the last of them."""

    request: Request
    hits: int
    after_us: int
    expected: Mapping[str, Any]
    """By field; of durations the seconds, `math.inf` for never."""


@dataclass(frozen=True, slots=True)
class RuleCase:
    """One case, checked."""

    name: str
    file: str
    line: int
    at_us: int | None
    steps: tuple[CaseStep, ...]


def read_cases(parsed: Parsed) -> tuple[RuleCase, ...]:
    """All cases of a file; raises `RulesError` with everything that is wrong with them."""
    known = {rule.rule_id for rule in parsed.rules}
    faults = {case.file: Faults(case.document) for case in parsed.cases}
    cases = [_case(case, known, faults[case.file]) for case in parsed.cases]
    problems = [problem for found in faults.values() for problem in found.problems()]
    if problems:
        raise RulesError(problems)
    return tuple(case for case in cases if case is not None)


def _case(case: Case, known: set[str], faults: Faults) -> RuleCase | None:
    at: At = ((None, "tests"), case.index)
    before = faults.count
    written = case.value
    CASE.check(written, at, faults)
    if faults.count > before:
        return None
    said = {name: value for name, value in written.items() if value is not None}
    steps = said.pop("steps", None)
    name = said.pop("name", case.path)
    at_us = _moment(said.pop("at", None), (at, "at"), faults)
    request = said.pop("request", {})
    if steps is None:
        read = [_step({**said, "request": request}, {}, at, known, faults)]
    else:
        for field in said:
            faults.add((at, field), f"`{field}` is not clear beside `steps`", "move it into a step")
        read = [
            _step(step, request, ((at, "steps"), i), known, faults) for i, step in enumerate(steps)
        ]
    return RuleCase(name, case.file, case.line, at_us, tuple(read))


def _step(
    said: Mapping[str, Any], request: Mapping[str, Any], at: At, known: set[str], faults: Faults
) -> CaseStep:
    expected = {name: said[name] for name in EXPECTED if said.get(name) is not None}
    if not expected:
        names = ", ".join(EXPECTED[:4])
        faults.add(at, "it expects nothing", f"say what must come of it: {names} or the like")
    named = [*expected.get("matches", ()), *expected.get("shadow_denied_by", ())]
    for rule_id in [*named, *([expected["denied_by"]] if "denied_by" in expected else [])]:
        if rule_id not in known:
            faults.add(at, f"there is no rule {rule_id!r}", "name one that is in the file")
    if "retry_after" in expected:
        retry_after = expected["retry_after"]
        expected["retry_after"] = (
            math.inf
            if retry_after == NEVER
            else _microseconds(retry_after, (at, "retry_after"), faults) / 1_000_000
        )
    after_us = _microseconds(said.get("after") or 0, (at, "after"), faults)
    own = said.get("request") or {}
    return CaseStep(_request({**request, **own}), said.get("hits") or 1, after_us, expected)


def _request(written: Mapping[str, Any]) -> Request:
    said = {name: value for name, value in written.items() if value is not None}
    if "descriptors" in said:
        said["descriptors"] = tuple(said["descriptors"].items())
    return Request(**said)


def _microseconds(written: float | str, at: At, faults: Faults) -> int:
    if not isinstance(written, str):
        return round(written * 1_000_000)
    found = _DURATION.fullmatch(written.strip().lower())
    unit = found and (UNIT_NAMES.get(found[2]) or UNIT_NAMES.get(found[2].removesuffix("s")))
    if not found or not unit:
        faults.add(at, f"{written!r} is no duration", "write seconds, or 30s, 5 minutes, 250ms")
        return 0
    duration_us = int(found[1]) * US_PER_UNIT[unit]
    if duration_us > MAX_SECONDS * 1_000_000:
        faults.add(at, f"{written!r} is longer than a year", "write a shorter one")
        return 0
    return duration_us


def _moment(written: str | None, at: At, faults: Faults) -> int | None:
    if written is None:
        return None
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        faults.add(at, f"{written!r} is no time", "write it like 2026-01-31T23:59:00Z")
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000_000)
