"""`headgate rate`: what a rate means, how it would be counted, and a chart of what it admits."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from typing import IO, TYPE_CHECKING, Any, Final

from ..algorithms import CalendarWindow
from ..algorithms.base import MAX_EXACT
from ..errors import UsageError
from ..rate import MAX_TEXT, Rate
from ._explain import RateExplanation, explain, timeline_json, window_name
from ._formatting import day, duration, number
from ._picture import draw
from ._simulation import COLUMNS, AllLimits, Timeline, edges_of, plan, plan_start, run as simulate
from ._terminal import BOLD, Screen, escaped

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ..clock import Clock

NAME: Final = "rate"
HELP: Final = "explain a rate, with a chart of what it admits"
EPILOG: Final = """\
a rate is COUNT/UNIT, with options:
  100/minute                              also: 100 per minute, 100/min, 100/m
  5/300s                                  us ms s m h d w, and their long names
  100/minute burst 20                     20 at once, then one every 600 ms
  1000/calendar month in Europe/Berlin    also day and week
  1000/calendar month anchor 15           from the 15th on
  '1/second; 100/hour'                    both apply; quote the semicolon

algorithms:
  token_bucket         a burst, then a steady rate   the default with a burst
  sliding_window       close to exact, small         the default without one
  sliding_log          exact, stores every hit
  fixed_window         starts from zero each window  for calendar rates
  exponential_backoff  tightens for clients that keep hammering
  adaptive             three count, one decides; here sliding_window

examples:
  headgate rate 100/minute burst 20
  headgate rate 4/s --algorithm sliding_log
  headgate rate 10000/minute --cost 250
  grep -v '^$' rates.txt | headgate rate - --json
"""
INDENT: Final = "  "
TEXT_WIDTH: Final = 78
QUANTITY: Final = re.compile(r"([0-9]) (?=(?:µs|ms|s|min|h|d|units?|hits?|times)\b)")
"""Where a line must not end: between a number and its unit."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.usage = "headgate rate TEXT [--algorithm NAME] [--cost N] [--json]"
    parser.epilog = EPILOG
    parser.add_argument(
        "text",
        metavar="TEXT",
        nargs="+",
        help="a rate such as '100/minute burst 20', or '-' to read one per line from stdin",
    )
    parser.add_argument("--algorithm", metavar="NAME", help="the algorithm to count with")
    parser.add_argument("--cost", metavar="N", default="1", help="units per hit")
    parser.add_argument("--json", action="store_true", help="print JSON instead, one line per TEXT")


def run(args: argparse.Namespace) -> int:
    """Explain what was asked for."""
    cost = _cost(args.cost)
    if args.text != ["-"]:
        _explain_text(" ".join(args.text), args, cost)
        return 0
    wrong = False
    first = True
    for at, line in _lines(sys.stdin):
        try:
            if not (first or args.json):
                Screen().write()
            _explain_text(line, args, cost)
            first = False
        except UsageError as error:
            wrong = True
            sys.stdout.flush()  # Keeps both streams in order on a terminal.
            print(f"headgate: line {at}: {escaped(str(error))}", file=sys.stderr)
    return 2 if wrong else 0


def _explain_text(text: str, args: argparse.Namespace, cost: int) -> None:
    clock: Clock = args.clock
    now_us = clock.now_us()
    explained = [explain(rate, args.algorithm, cost, now_us) for rate in Rate.parse_all(text)]
    views = _views(explained, cost, now_us) if len(explained) > 1 else []
    if args.json:
        print(json.dumps(_as_json(explained, views, now_us)))
        return
    screen = Screen()
    for i, one in enumerate(explained):
        if i:
            screen.write()
        _write_one(one, screen)
    if views:
        screen.write()
        _write_together(explained, views, screen)


def _views(
    explained: list[RateExplanation], cost: int, now_us: int
) -> list[tuple[RateExplanation, Timeline]]:
    """All rates together, over the shortest window and over the longest that can be drawn."""
    limits = tuple(one.limit for one in explained)
    by_window = sorted(explained, key=lambda one: one.limit.window_us)
    first = plan_start(limits, cost, edges_of(by_window[0].limit, now_us))
    views = [(by_window[0], simulate(AllLimits(limits), first))]
    for one in reversed(by_window[1:]):
        longer = plan(limits, cost, edges_of(one.limit, now_us))
        if longer is not None:
            return [*views, (one, simulate(AllLimits(limits), longer))]
    return views


def _write_one(one: RateExplanation, screen: Screen) -> None:
    screen.write(screen.paint(str(one.rate), BOLD))
    screen.write()
    for name, value in one.headings:
        screen.write(f"{INDENT}{name:<12}{value}")
    screen.write()
    _write_facts(one.facts, screen)
    screen.write()
    _write_picture(one, one.timeline, screen)


def _write_together(
    explained: list[RateExplanation], views: list[tuple[RateExplanation, Timeline]], screen: Screen
) -> None:
    names = "; ".join(str(one.rate) for one in explained)
    for line in textwrap.wrap(f"Together: {names}", TEXT_WIDTH, subsequent_indent=INDENT):
        screen.write(screen.paint(line, BOLD))
    screen.write()
    facts = ["A hit passes if every rate has room for it. Otherwise none of them is charged."]
    drawn_us = views[-1][0].limit.window_us
    longer = [str(one.rate) for one in explained if one.limit.window_us > drawn_us]
    if longer:
        facts.append(f"Not drawn: {', '.join(longer)}. It would take too many hits.")
    _write_facts(tuple(facts), screen)
    for one, timeline in views:
        screen.write()
        _write_picture(one, timeline, screen)
        said_no = ", ".join(
            f"{each.rate} {_times(refused)}"
            for each, refused in zip(explained, timeline.refusals, strict=True)
        )
        _write_wrapped("denied by       ", said_no, screen)


def _write_picture(one: RateExplanation, timeline: Timeline, screen: Screen) -> None:
    plan = timeline.plan
    edges_us = plan.edges_us
    calendar = one.limit.calendar if isinstance(one.limit, CalendarWindow) else None
    hits = number(plan.per_column * COLUMNS)
    length = window_name(one.rate) if plan.whole else duration(edges_us[1] - edges_us[0])
    spacing = "evenly spaced" if plan.batch == 1 else f"in batches of {number(plan.batch)}"
    screen.write(f"{INDENT}A pause, then {hits} hits per {length}, {spacing}:")
    screen.write()
    if calendar is not None:
        labels = [day(edge_us, calendar.tz) for edge_us in edges_us]
    else:
        labels = ["0", *(duration(edge_us - edges_us[0]) for edge_us in edges_us[1:])]
    for line in draw(timeline, labels, screen, one.now_us if calendar else None):
        screen.write(line)


def _write_facts(facts: tuple[str, ...], screen: Screen) -> None:
    for fact in facts:
        _write_wrapped("• ", fact, screen)


def _write_wrapped(lead: str, text: str, screen: Screen) -> None:
    wrapped = textwrap.wrap(
        QUANTITY.sub("\\1\N{NO-BREAK SPACE}", text),
        TEXT_WIDTH,
        initial_indent=INDENT + lead,
        subsequent_indent=INDENT + " " * len(lead),
        break_on_hyphens=False,
    )
    for line in wrapped:
        screen.write(line.replace("\N{NO-BREAK SPACE}", " "))


def _as_json(
    explained: list[RateExplanation], views: list[tuple[RateExplanation, Timeline]], now_us: int
) -> dict[str, Any]:
    answer: dict[str, Any] = {"now_us": now_us, "rates": [one.as_json() for one in explained]}
    if views:
        answer["together"] = [
            {
                "over": str(one.rate),
                "timeline": timeline_json(timeline),
                "refusals": {
                    str(each.rate): refused
                    for each, refused in zip(explained, timeline.refusals, strict=True)
                },
            }
            for one, timeline in views
        ]
    return answer


def _times(refused: int) -> str:
    if refused < 2:
        return "once" if refused else "never"
    return f"{number(refused)} times"


def _cost(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and 1 <= int(text) <= MAX_EXACT):
        raise UsageError(
            f"the cost must be a whole number from 1 to {MAX_EXACT}, not {text[:60]!r}"
        )
    return int(text)


def _lines(stream: IO[str] | None) -> Iterator[tuple[int, str]]:
    """The lines that hold something, with their numbers. `#` begins a comment."""
    if stream is None:
        raise UsageError("standard input is closed; pass the rate as an argument")
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")  # Binary data is a bad rate, not a crash.
    at = 0
    while line := stream.readline(MAX_TEXT + 2):
        at += 1
        if len(line) > MAX_TEXT + 1:
            raise UsageError(
                f"line {at} has more than {MAX_TEXT} characters; the rest was not read"
            )
        if line.strip() and not line.lstrip().startswith("#"):
            yield at, line.strip()
