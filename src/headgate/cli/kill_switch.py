"""`headgate kill-switch`: turn off all limits or those of one rule, without the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError, UsageError
from ..guards.kill_switch import EVERYTHING, KillSwitch, require_kill_switch
from ._service import (
    PLACES,
    add_service,
    in_path,
    print_json,
    print_result,
    print_table,
    service_of,
)

if TYPE_CHECKING:
    import argparse

NAME: Final = "kill-switch"
HELP: Final = "turn limits off in an emergency, or on again"
EPILOG: Final = f"""\
{PLACES}
Each node has its own switch; its workers share one. With --file no service is
called: nodes that have this file as their setting kill_switch follow it within
a second. A file with other contents is refused.

examples:
  headgate kill-switch off --reason 'denying everybody'
  headgate kill-switch off --rule login
  headgate kill-switch on
  headgate kill-switch --file /etc/headgate/off
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    parser.add_argument(
        "state",
        nargs="?",
        choices=("off", "on"),
        help="turn limits off or on; without it, show the state",
    )
    parser.add_argument("--rule", metavar="ID", help="only the limits of this rule")
    parser.add_argument("--reason", metavar="TEXT", default="", help="why")
    parser.add_argument("--file", metavar="PATH", help="the switch's file, instead of a service")
    add_service(parser)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    if args.state is None and (args.rule or args.reason):
        raise UsageError("say whether to turn limits 'off' or 'on'")
    found = _by_file(args) if args.file else _by_service(args)
    if args.state is not None:
        what = "all limits are" if args.rule is None else f"the limits of {args.rule} are"
        print_result(args, found, f"{what} {args.state}")
    elif args.json:
        print_json(found)
    else:
        rows = [(rule, reason) for rule, reason in sorted(found["rules"].items())]
        if found["everything"]:
            rows.insert(0, (EVERYTHING, found["reason"]))
        print_table(("OFF", "REASON"), rows)
    return 0


def _by_file(args: argparse.Namespace) -> Any:
    path = Path(args.file)
    if not path.parent.is_dir():  # No service would follow a file whose name is misspelt.
        raise UsageError(f"--file {path}: there is no directory {path.parent}; create it first")
    what = EVERYTHING if args.rule is None else args.rule
    try:
        require_kill_switch(path)
        switch = KillSwitch(path)
        if args.state == "off":
            switch.turn_off(what, args.reason)
        elif args.state == "on":
            switch.turn_on(what)
    except ConfigError as error:
        raise UsageError(f"--file {error}") from error
    off = dict(switch.off)
    reason = off.pop(EVERYTHING, None)
    return {"everything": reason is not None, "reason": reason or "", "rules": off, "file": True}


def _by_service(args: argparse.Namespace) -> Any:
    service = service_of(args)
    path = "/api/kill-switch" if args.rule is None else f"/api/kill-switch/{in_path(args.rule)}"
    if args.state is None:
        return service.get(path)
    if args.state == "off":
        return service.ask("PUT", path, {"reason": args.reason})
    return service.ask("DELETE", path)
