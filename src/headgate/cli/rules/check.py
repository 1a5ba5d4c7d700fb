"""`headgate rules check`: find every mistake in rules files, and warn of what may be one."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Final

from ...errors import ConfigError
from ...rules.format.problems import Problem, RulesError
from .._terminal import escaped
from ._load import STDIN, load_rules
from ._show import counted, problem_json, show_problems

if TYPE_CHECKING:
    import argparse

    from ...rules.format.parse import Parsed

NAME: Final = "check"
HELP: Final = "find mistakes in rules files"
EPILOG: Final = """\
Every file is a separate rule set. Mistakes and warnings go to stderr, one
line each, as FILE:LINE: PLACE: what is wrong; what to do.

examples:
  headgate rules check rules.yaml
  headgate rules check --json *.yaml
  kubectl get cm rules -o jsonpath='{.data.rules}' | headgate rules check -

exit codes: 0 the rules are valid, 1 some are not, 2 wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.usage = "headgate rules check FILE... [--json]"
    parser.epilog = EPILOG
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="a rules file, JSON or YAML; '-' reads stdin; or the URL of a source",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one line per FILE")


def run(args: argparse.Namespace) -> int:
    """Check every file, and print the result of each."""
    # Not `all` over a generator: every file is checked.
    fine = [_check(file, as_json=args.json) for file in args.files]
    return 0 if all(fine) else 1


def _check(file: str, *, as_json: bool) -> bool:
    from ...rules.format.cases import read_cases  # noqa: PLC0415 - not for every start
    from ...rules.sources.base import SourceError  # noqa: PLC0415

    try:
        parsed = load_rules(file)
        read_cases(parsed)
    except RulesError as error:
        problems = error.problems
    except (ConfigError, SourceError) as error:
        message, _, remedy = str(error).removeprefix(f"{file} ").partition("; ")
        problems = (Problem(file, 0, "", message, remedy),)
    else:
        _print_valid(file, parsed, as_json=as_json)
        return True
    _print_invalid(file, problems, as_json=as_json)
    return False


def _print_valid(file: str, parsed: Parsed, *, as_json: bool) -> None:
    rules, warnings = parsed.rules, parsed.warnings
    if as_json:
        _print_json(file, ok=True, rules=len(rules), version=rules.version, warnings=warnings)
        return
    sys.stdout.flush()  # Keeps both streams in order on a terminal.
    show_problems(warnings, kind="warning")
    more = f", {counted(len(warnings), 'warning')}" if warnings else ""
    print(f"{_name(file)}: {counted(len(rules), 'rule')}, version {rules.version}{more}")


def _print_invalid(file: str, problems: tuple[Problem, ...], *, as_json: bool) -> None:
    if as_json:
        _print_json(file, ok=False, problems=problems)
        return
    sys.stdout.flush()
    show_problems(problems)
    print(f"{_name(file)}: {counted(len(problems), 'problem')}", file=sys.stderr)


def _name(file: str) -> str:
    return "stdin" if file == STDIN else escaped(file)


def _print_json(
    file: str,
    *,
    ok: bool,
    rules: int | None = None,
    version: str | None = None,
    problems: tuple[Problem, ...] = (),
    warnings: tuple[Problem, ...] = (),
) -> None:
    answer = {
        "file": file,
        "ok": ok,
        "rules": rules,
        "version": version,
        "problems": [problem_json(problem) for problem in problems],
        "warnings": [problem_json(problem) for problem in warnings],
    }
    print(json.dumps(answer))
