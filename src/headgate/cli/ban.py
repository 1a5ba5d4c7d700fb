"""`headgate ban`: ban a key, lift a ban, or list bans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..errors import UsageError
from ._service import (
    PLACES,
    add_service,
    in_path,
    print_json,
    print_result,
    print_table,
    seconds_of,
    service_of,
)

if TYPE_CHECKING:
    import argparse

    from ._service import Service

NAME: Final = "ban"
HELP: Final = "ban a key, or lift a ban"
EPILOG: Final = f"""\
{PLACES}
examples:
  headgate ban user:42 --for 10m --reason 'credential stuffing'
  headgate ban user:42 --remove
  headgate ban --list
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    parser.add_argument("key", metavar="KEY", nargs="?", help="the key")
    parser.add_argument("--for", metavar="SPAN", dest="span", help="for how long, such as 10m")
    parser.add_argument("--reason", metavar="TEXT", default="", help="why; shown to clients")
    parser.add_argument("--remove", action="store_true", help="lift the ban")
    parser.add_argument("--list", action="store_true", help="list the bans")
    add_service(parser)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    if (args.key is None) is not args.list:
        raise UsageError("give a key, or use --list")
    service = service_of(args)
    if args.list:
        return _list(service, args)
    if args.remove:
        service.ask("DELETE", f"/api/bans/{in_path(args.key)}")
        print_result(args, {"removed": True}, f"{args.key} is no longer banned")
        return 0
    body: dict[str, Any] = {"reason": args.reason}
    if args.span is not None:
        body["ttl"] = seconds_of(args.span)
    ban = service.ask("PUT", f"/api/bans/{in_path(args.key)}", body)
    until = "until it is removed" if ban["until"] is None else f"until {ban['until']}"
    print_result(args, ban, f"{args.key} is banned {until}")
    return 0


def _list(service: Service, args: argparse.Namespace) -> int:
    found = service.get("/api/bans")
    if args.json:
        print_json(found)
        return 0
    rows = [
        (one["key"][:60], one["until"] or "for ever", one["by"], one["reason"][:60])
        for one in found["bans"]
    ]
    print_table(("KEY", "UNTIL", "BY", "REASON"), rows)
    return 0
