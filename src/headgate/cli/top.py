"""`headgate top`: live traffic, which algorithm decides and why, the busiest keys, and those that are denied."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError, UsageError
from ._service import PLACES, add_service, print_json, print_table, service_of
from ._terminal import Screen, escaped, is_ascii_only
from .pin import row_of

if TYPE_CHECKING:
    import argparse

    from ._service import Service

NAME: Final = "top"
HELP: Final = "watch traffic, the busiest keys and those that are denied"
EPILOG: Final = f"""\
Without a terminal, or with --once, it prints once and exits.

{PLACES}
examples:
  headgate top
  headgate top --once --json
"""
CHOICES: Final = ("RULE", "DECIDES", "SINCE", "WHY")
BARS: Final = " ▁▂▃▄▅▆▇█"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    parser.add_argument("--once", action="store_true", help="print it once")
    parser.add_argument("--limit", metavar="N", type=int, default=10, help="how many keys (10)")
    parser.add_argument(
        "--interval", metavar="S", type=float, default=1.0, help="seconds between updates (1)"
    )
    add_service(parser)


def run(args: argparse.Namespace) -> int:
    """Show it until interrupted, or once."""
    if not 1 <= args.limit <= 100:
        raise UsageError(f"--limit must be from 1 to 100, not {args.limit}")
    if not 0.1 <= args.interval <= 3600:
        raise UsageError(f"--interval must be from 0.1 to 3600 seconds, not {args.interval:g}")
    service = service_of(args)
    found = _look(service, args.limit)
    if args.json:
        print_json(found)
    elif args.once or sys.stdout is None or not sys.stdout.isatty():
        _print(found)
    else:
        _watch(service, args, found)
    return 0


def _look(service: Service, limit: int) -> dict[str, Any]:
    blocked = service.get("/api/blocks")["blocked"]
    return {
        "traffic": service.get("/api/traffic"),
        "choice": service.get("/api/choice"),
        "top": service.get("/api/top", limit=limit)["top"],
        "blocked": blocked[:limit],
        "blocked_in_all": len(blocked),
    }


def _print(found: dict[str, Any]) -> None:
    screen = Screen()
    screen.write(_traffic(found))
    screen.write(escaped(_why(found)))
    screen.write()
    if found["choice"]["rules"]:
        print_table(CHOICES, [row_of(one) for one in found["choice"]["rules"].values()])
        screen.write()
    print_table(("KEY", "HITS"), [(one["key"][:60], one["hits"]) for one in found["top"]])
    screen.write()
    screen.write(f"denied right now: {found['blocked_in_all']}")
    if found["blocked"]:
        print_table(("KEY", "UNTIL", "REASON"), [_blocked(one) for one in found["blocked"]])


def _watch(service: Service, args: argparse.Namespace, found: dict[str, Any]) -> None:
    """Redraw until interrupted."""
    try:
        from rich.live import Live  # noqa: PLC0415 - an extra, and only for terminals
    except ModuleNotFoundError as error:
        raise ConfigError(
            "a live view needs an extra: pip install 'headgate[service]'; or use --once"
        ) from error
    with Live(_drawn(found), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(args.interval)
            found = _look(service, args.limit)
            live.update(_drawn(found), refresh=True)


def _drawn(found: dict[str, Any]) -> Any:
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    top = Table(title="busiest, in the last minutes", title_justify="left", expand=True)
    top.add_column("key", ratio=1, no_wrap=True)
    top.add_column("hits", justify="right")
    for one in found["top"]:
        top.add_row(Text(escaped(one["key"])), str(one["hits"]))
    title = f"denied right now: {found['blocked_in_all']}"
    blocked = Table(title=title, title_justify="left", expand=True)
    for name in ("key", "until", "reason"):
        blocked.add_column(name, no_wrap=True, ratio=1)
    for one in found["blocked"]:
        blocked.add_row(*(Text(escaped(cell)) for cell in _blocked(one)))
    head: list[Any] = [Text(_traffic(found), style="bold"), Text(escaped(_why(found))), Text()]
    if found["choice"]["rules"]:
        rules = Table(title="adaptive rules", title_justify="left", expand=True)
        for name in CHOICES:
            rules.add_column(name.lower(), no_wrap=True)
        for one in found["choice"]["rules"].values():
            rules.add_row(*(Text(escaped(cell)) for cell in row_of(one)))
        head += [rules, Text()]
    return Group(*head, top, Text(), blocked)


def _traffic(found: dict[str, Any]) -> str:
    traffic = found["traffic"]
    seconds = [one["requests"] for one in traffic["seconds"]]
    return (
        f"{traffic['req_per_sec']:g}/s  {_spark(seconds)}  {traffic['deny_rate']:.1%} denied  "
        f"{traffic['active_algorithm']}  {traffic['nodes']} up"
    )


def _why(found: dict[str, Any]) -> str:
    """Which algorithm decides, and why."""
    traffic = found["traffic"]
    reason = traffic["reason"]
    decides = f"checks are decided by {traffic['active_algorithm']}"
    return f"{decides}: {reason}" if reason else f"{decides}, as set"


def _spark(values: list[int]) -> str:
    """The last seconds as a line of bars."""
    if sys.stdout is None or is_ascii_only(sys.stdout):
        return " ".join(map(str, values))
    highest = max([1, *values])
    return "".join(BARS[-(-value * 8 // highest)] for value in values)


def _blocked(one: dict[str, Any]) -> tuple[str, str, str]:
    until = one["blocked_until"]
    return one["key"][:60], "for ever" if until is None else until[11:19], one["reason"][:60]
