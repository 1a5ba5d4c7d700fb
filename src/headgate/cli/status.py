"""`headgate status`: how a service is, in one look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ._service import PLACES, add_service, print_json, print_table, service_of
from ._terminal import BOLD, GREEN, RED, Screen, escaped

if TYPE_CHECKING:
    import argparse

NAME: Final = "status"
HELP: Final = "show how a service is: its nodes, its store, its traffic"
EPILOG: Final = f"""\
{PLACES}
exit codes: 0 all is well, 1 it is degraded, draining or away
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    add_service(parser)


def run(args: argparse.Namespace) -> int:
    """Show it."""
    service = service_of(args)
    found = {
        "health": service.get("/health"),
        **service.get("/api/nodes"),
        "traffic": service.get("/api/traffic"),
    }
    if args.json:
        print_json(found)
    else:
        _show(service.url, found)
    return 0 if found["health"]["status"] == "ok" else 1


def _show(url: str, found: dict[str, Any]) -> None:
    screen = Screen()
    health, traffic = found["health"], found["traffic"]
    status = screen.paint(health["status"], GREEN if health["status"] == "ok" else RED)
    screen.write(f"{screen.paint(url, BOLD)} is {status}, version {health['version']}")
    screen.write(f"  store     {health['redis']}")
    screen.write(
        f"  board     {health['board']}"
        + (f": {escaped(found['problem'])}" if found["problem"] else "")
    )
    screen.write(f"  rules     {health['rules']}")
    screen.write(
        f"  traffic   {traffic['req_per_sec']:g}/s, {traffic['deny_rate']:.1%} denied, "
        f"burst ratio {traffic['burst_ratio']:g}; {traffic['total_requests']} in all"
    )
    screen.write()
    print_table(
        ("NODE", "ADDRESS", "STATE", "SINCE", "REQUESTS", "DENIED"),
        [
            (
                node["id"],
                node["address"],
                "Draining" if node["draining"] else node["state"],
                node["registered_at"][:19].replace("T", " "),
                node["requests"],
                node["denied"],
            )
            for node in found["nodes"]
        ],
    )
