"""`headgate rules test`: run the test cases of a rules file."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any, Final

from ...errors import UsageError
from ...rules.format.problems import RulesError
from .._terminal import GREEN, RED, Screen, escaped
from ._load import load_rules
from ._show import counted, show_problems

if TYPE_CHECKING:
    import argparse

    from ...rules.format.cases import RuleCase
    from ...rules.request import Request
    from ...testing.cases import CaseMismatch, CaseResult, StepResult

NAME: Final = "test"
HELP: Final = "run the tests of a rules file"
EPILOG: Final = """\
Cases are under `tests:` in the file. Each sends a request one or more times, on
a clock that only the case moves, and says which rules must apply and what the
last answer must be. A store has no cases: give a file with --tests.

examples:
  headgate rules test rules.yaml
  headgate rules test --json rules.yaml
  headgate rules test zookeeper://localhost --tests rules.yaml

exit codes: 0 all passed, 1 some failed or the rules are invalid, 2 wrong usage
or no tests
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.usage = "headgate rules test FILE|URL [--tests FILE] [--json]"
    parser.epilog = EPILOG
    parser.add_argument(
        "file", metavar="FILE | URL", help="a rules file, '-' for stdin, or the URL of a source"
    )
    parser.add_argument("--tests", metavar="FILE", help="take the cases from this file instead")
    parser.add_argument("--json", action="store_true", help="print JSON, one line per case")


def run(args: argparse.Namespace) -> int:
    """Run every case, and show those that failed."""
    from ...rules.format.cases import read_cases  # noqa: PLC0415 - not for every start
    from ...testing.cases import run_cases  # noqa: PLC0415

    try:
        parsed = load_rules(args.file, as_nodes_do=True)
        cases = read_cases(parsed if args.tests is None else load_rules(args.tests))
    except RulesError as error:
        show_problems(error.problems)
        return 1
    if not cases:
        named = args.tests or args.file
        more = "" if args.tests else ", or give a file with tests with --tests"
        raise UsageError(f"{named} has no tests; write some under `tests:`{more}")
    results = []
    for result in run_cases(parsed.rules, cases):
        results.append(result)
        if args.json:
            print(json.dumps(_as_json(result)))
        else:
            _show(result, Screen())
    failed = sum(not result.passed for result in results)
    if not args.json:
        sys.stdout.flush()
        print(
            f"{counted(len(results), 'case')}, " + (f"{failed} failed" if failed else "all passed")
        )
    return 1 if failed else 0


def _show(result: CaseResult, screen: Screen) -> None:
    case = result.case
    if result.passed:
        screen.write(f"{screen.paint('ok', GREEN)}    {escaped(case.name)}")
        return
    place = f"{case.file}:{case.line}" if case.line else case.file
    screen.write(f"{screen.paint('FAIL', RED)}  {escaped(case.name)}  ({escaped(place)})")
    for number, step in enumerate(result.steps, 1):
        if step.differences:
            _show_step(case, number, step, screen)


def _show_step(case: RuleCase, number: int, step: StepResult, screen: Screen) -> None:
    which = f"step {number}, " if len(case.steps) > 1 else ""
    when = f" after {_seconds(step.at_us / 1_000_000)}" if step.at_us else ""
    screen.write(f"        {which}hit {step.hit}{when}: {_request_text(step.step.request)}")
    width = max(len(one.field) for one in step.differences)
    for one in step.differences:
        expected, got = _pair(one)
        screen.write(f"          {one.field:<{width}}  expected  {expected}")
        screen.write(f"          {'':<{width}}  got       {screen.paint(got, RED)}")
    if any(one.field == "matches" for one in step.differences):
        wanted = set(step.step.expected["matches"])
        for asked in step.trace.steps:
            if (asked.rule.rule_id in wanted) is not asked.applies:
                why = f"{asked.rule.rule_id}: {asked.outcome}, {asked.why}"
                screen.write(f"          {escaped(why)}")


def _request_text(request: Request) -> str:
    text = f"{request.method} {request.path}"
    if request.ip:
        text += f" from {request.ip}"
    if request.user_id:
        text += f" by {request.user_id}"
    return escaped(text)


def _pair(one: CaseMismatch) -> tuple[str, str]:
    return _value(one.field, one.expected), _value(one.field, one.got)


def _value(field: str, value: Any) -> str:
    if field == "retry_after":
        return _seconds(value)
    if isinstance(value, list):
        return escaped(", ".join(value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "nobody" if value is None else escaped(str(value))


def _seconds(seconds: float) -> str:
    return "never" if seconds == math.inf else f"{seconds:.6f}".rstrip("0").rstrip(".") + " s"


def _as_json(result: CaseResult) -> dict[str, Any]:
    return {
        "name": result.case.name,
        "file": result.case.file,
        "line": result.case.line,
        "passed": result.passed,
        "failures": [
            {
                "step": number,
                "hit": step.hit,
                "after_seconds": step.at_us / 1_000_000,
                "field": one.field,
                "expected": _json_value(one.expected),
                "got": _json_value(one.got),
            }
            for number, step in enumerate(result.steps, 1)
            for one in step.differences
        ],
    }


def _json_value(value: Any) -> Any:
    return "never" if value == math.inf else value
