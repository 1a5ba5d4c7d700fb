"""`headgate rules explain`: why each rule applies to a request, or does not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from ...algorithms.base import MAX_EXACT
from ...errors import UsageError
from ...rules.format.problems import RulesError
from .._terminal import BOLD, GREEN, Screen, escaped
from ._load import load_rules
from ._show import show_problems

if TYPE_CHECKING:
    import argparse

    from ...rules.matching.explain import Trace, TraceStep
    from ...rules.request import Request

NAME: Final = "explain"
HELP: Final = "show why each rule applies to a request, or does not"
EPILOG: Final = """\
examples:
  headgate rules explain rules.yaml --path /api//v1/login --method POST
  headgate rules explain etcd://localhost --path /login --ip 203.0.113.9
  headgate rules explain rules.yaml --ip 203.0.113.9 --header 'X-Team: blue'

exit codes: 0 a rule applies, 1 none does or invalid rules, 2 wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.usage = "headgate rules explain FILE|URL [--path PATH] [--method METHOD] ..."
    parser.epilog = EPILOG
    parser.add_argument(
        "file", metavar="FILE | URL", help="a rules file, '-' for stdin, or the URL of a source"
    )
    parser.add_argument("--path", default="/", help="as the client sends it (/)")
    parser.add_argument("--method", default="GET", help="the method (GET)")
    parser.add_argument("--ip", metavar="ADDRESS", help="the client's address")
    parser.add_argument("--user-id", metavar="ID", help="the authenticated user")
    parser.add_argument("--api-key", metavar="KEY", help="the API key")
    parser.add_argument("--host", help="the requested host")
    parser.add_argument(
        "--header",
        metavar="NAME:VALUE",
        action="append",
        default=[],
        help="a header; may be repeated",
    )
    parser.add_argument(
        "--descriptor",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="an Envoy descriptor; may be repeated",
    )
    parser.add_argument("--cost", metavar="N", help="the cost given by the caller")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Explain the request."""
    from ...rules.matching.explain import explain  # noqa: PLC0415 - not for every start

    request = _request(args)
    try:
        trace = explain(load_rules(args.file, as_nodes_do=True).rules, request)
    except RulesError as error:
        show_problems(error.problems)
        return 1
    if args.json:
        print(json.dumps(trace.as_json()))
    else:
        _show(trace, Screen())
    return 0 if trace.charges else 1


def _request(args: argparse.Namespace) -> Request:
    from ...rules.request import Request  # noqa: PLC0415

    headers: dict[str, str] = {}
    for name, value in (_split(text, ":", "--header") for text in args.header):
        lower = name.lower()
        headers[lower] = f"{headers[lower]}, {value.strip()}" if lower in headers else value.strip()
    cost = None
    if args.cost is not None:
        text = args.cost
        if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= MAX_EXACT):
            raise UsageError(
                f"the cost must be a whole number from 0 to {MAX_EXACT}, not {text[:60]!r}"
            )
        cost = int(text)
    return Request(
        args.method,
        args.path,
        args.ip,
        args.user_id,
        args.api_key,
        args.host,
        headers,
        tuple(_split(text, "=", "--descriptor") for text in args.descriptor),
        cost,
    )


def _split(text: str, mark: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition(mark)
    if not found or not name.strip():
        raise UsageError(f"{option} must have the form name{mark}value, not {text[:60]!r}")
    return name.strip(), value


def _show(trace: Trace, screen: Screen) -> None:
    path = "refused" if trace.path is None else escaped(trace.path)
    about = f"{escaped(trace.method)} {path}"
    if trace.host:
        about += f" on {escaped(trace.host)}"
    if trace.address:
        about += f" from {trace.address}"
    screen.write(screen.paint(about, BOLD))
    for note in trace.notes:
        screen.write(f"  note: {escaped(note)}")
    screen.write()
    rows = [_row(step) for step in trace.steps]
    widths = [max(len(row[i]) for row in [HEADINGS, *rows]) for i in range(len(HEADINGS) - 1)]
    screen.write(screen.paint(_line(HEADINGS, widths), BOLD))
    for step, row in zip(trace.steps, rows, strict=True):
        line = _line(row, widths)
        screen.write(screen.paint(line, GREEN) if step.outcome == "enforced" else line)
        for note in step.notes:
            screen.write(f"{'':{widths[0] + widths[1] + 4}}note: {escaped(note)}")
    screen.write()
    screen.write(_summary(trace))


HEADINGS: Final = ("rule", "outcome", "key", "cost", "limits", "why")


def _row(step: TraceStep) -> tuple[str, ...]:
    from ...rules.matching.explain import limit_text  # noqa: PLC0415

    key = cost = limits = ""
    if step.charge is not None:
        shown = step.charge.key if len(step.charge.key) <= 40 else step.charge.key[:39] + "..."
        key, cost = escaped(shown), str(step.charge.cost)
        limits = ", ".join(limit_text(limit) for limit in step.charge.limits)
    return escaped(step.rule.rule_id), step.outcome, key, cost, limits, escaped(step.why)


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    *most, last = row
    return "  ".join(
        [*(f"{text:<{width}}" for text, width in zip(most, widths, strict=True)), last]
    )


def _summary(trace: Trace) -> str:
    if trace.refusal:
        return escaped(f"It is denied: {trace.refusal}.")
    enforced = [step.rule.rule_id for step in trace.steps if step.outcome == "enforced"]
    shadows = [step.rule.rule_id for step in trace.steps if step.outcome == "shadow"]
    if not enforced and not shadows:
        return "No rule applies: nothing limits this request."
    said = f"It is counted by {', '.join(enforced)}" if enforced else "Nothing limits this request"
    if shadows:
        said += f"; {', '.join(shadows)} watch{'es' if len(shadows) == 1 else ''}"
    return escaped(f"{said}.")
