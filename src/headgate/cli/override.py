"""`headgate override`: give a key another limit for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..errors import UsageError
from ..rate import Rate
from ._service import (
    PLACES,
    ServiceError,
    add_service,
    in_path,
    print_json,
    print_table,
    seconds_of,
    service_of,
    tell,
)

if TYPE_CHECKING:
    import argparse

    from ._service import Service

NOT_FOUND: Final = 404
NAME: Final = "override"
HELP: Final = "give a key another limit for a while"
EPILOG: Final = f"""\
With --for it ends by itself; with --stay the key keeps its own limit until that
is removed with --stay --remove.

{PLACES}
examples:
  headgate override user:42 1000/minute --for 1h --reason 'load test'
  headgate override user:42 '100/minute burst 20' --stay
  headgate override user:42 --remove
  headgate override --list
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    parser.add_argument("key", metavar="KEY", nargs="?", help="who")
    parser.add_argument("rate", metavar="RATE", nargs="?", help="how much, such as 1000/minute")
    parser.add_argument("--for", metavar="SPAN", dest="span", help="for how long, such as 1h")
    parser.add_argument("--stay", action="store_true", help="until somebody removes it")
    parser.add_argument("--algorithm", metavar="NAME", help="count it with this one")
    parser.add_argument("--reason", metavar="TEXT", default="", help="why, for the audit log")
    parser.add_argument("--remove", action="store_true", help="let what held before hold again")
    parser.add_argument("--list", action="store_true", help="show what is overridden")
    add_service(parser)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    if (args.key is None) is not args.list:
        raise UsageError("name a key, or ask for --list")
    service = service_of(args)
    if args.list:
        return _list(service, args)
    place = f"/api/{'limits' if args.stay else 'overrides'}/{in_path(args.key)}"
    if args.remove:
        _remove(service, args, place)
        tell(args, {"removed": True}, f"what held before holds again for {args.key}")
        return 0
    found = service.ask("PUT", place, _body(args))
    until = "until it is removed" if found["until"] is None else f"until {found['until']}"
    tell(args, found, f"{args.key} may do {args.rate}, {until}")
    return 0


def _remove(service: Service, args: argparse.Namespace, place: str) -> None:
    """Remove what was named; if there is only the other kind, say how that is removed."""
    try:
        service.ask("DELETE", place)
    except ServiceError as error:
        if error.status != NOT_FOUND:
            raise
        if args.stay and args.key in service.get("/api/overrides")["overrides"]:
            hint = "; what overrides it for a while is removed with --remove alone"
        elif not args.stay and args.key in service.get("/api/limits")["per_key_limits"]:
            hint = "; the limit that it keeps is removed with --stay --remove"
        else:
            hint = ""
        raise ServiceError(f"{error}{hint}") from None


def _body(args: argparse.Namespace) -> dict[str, Any]:
    if args.rate is None:
        raise UsageError("say how much, such as 1000/minute")
    if args.span is not None and args.stay:
        raise UsageError("--for ends by itself and --stay does not; give one of the two")
    if args.span is None and not args.stay:
        raise UsageError("say for how long with --for, such as --for 1h; or --stay")
    rates = Rate.parse_all(args.rate)
    if len(rates) > 1:
        raise UsageError(
            f"a key has one limit of its own, and {args.rate!r} is {len(rates)}; write a rule for that"
        )
    (rate,) = rates
    if rate.calendar is not None:
        raise UsageError("a key's own limit has a window, not a calendar; write a rule for that")
    body: dict[str, Any] = {"limit": rate.limit, "window": rate.window, "reason": args.reason}
    if rate.burst is not None:
        body["burst"] = rate.burst
    if args.algorithm is not None:
        body["algorithm"] = args.algorithm
    if args.span is not None:
        body["ttl"] = seconds_of(args.span)
    return body


def _list(service: Service, args: argparse.Namespace) -> int:
    found = {
        **service.get("/api/overrides"),
        "per_key_limits": service.get("/api/limits")["per_key_limits"],
    }
    if args.json:
        print_json(found)
        return 0
    rows = [
        (key[:60], one["limit"], f"{one['window_ms'] / 1000:g} s", one["until"] or "stays",
         one["by"], one["reason"][:60])
        for group in ("overrides", "per_key_limits")
        for key, one in found[group].items()
    ]  # fmt: skip
    print_table(("KEY", "LIMIT", "WINDOW", "UNTIL", "BY", "REASON"), rows)
    return 0
