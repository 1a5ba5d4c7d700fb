"""`headgate status`: the state of a service at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ._service import PLACES, add_service, print_json, print_table, service_of
from ._terminal import BOLD, GREEN, RED, Screen, escaped

if TYPE_CHECKING:
    import argparse

NAME: Final = "status"
HELP: Final = "show the status of a service: nodes, store, traffic"
STATES: Final = {"up": "connected", "down": "unreachable"}
SHARD_HEADS: Final = ("SHARDS", "COMMIT P50 / P99", "UNCONFIRMED, SINCE")
EPILOG: Final = f"""\
{PLACES}
exit codes: 0 all is well, 1 it is degraded, draining or unreachable, or limits
are turned off
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
        "regions": service.get("/api/regions"),
        "traffic": service.get("/api/traffic"),
        "kill_switch": service.get("/api/kill-switch"),
    }
    if args.json:
        print_json(found)
    else:
        _show(service.url, found)
    off = found["kill_switch"]
    return 0 if found["health"]["status"] == "ok" and not (off["everything"] or off["rules"]) else 1


def _show(url: str, found: dict[str, Any]) -> None:
    screen = Screen()
    health, traffic = found["health"], found["traffic"]
    status = screen.paint(health["status"], GREEN if health["status"] == "ok" else RED)
    screen.write(f"{screen.paint(url, BOLD)} is {status}, version {health['version']}")
    screen.write(f"  store     {_store(found)}")
    screen.write(
        f"  board     {health['board']}"
        + (f": {escaped(found['problem'])}" if found["problem"] else "")
    )
    screen.write(f"  rules     {health['rules']}")
    for line in _off(found["kill_switch"]):
        screen.write(screen.paint(line, RED))
    screen.write(
        f"  traffic   {traffic['req_per_sec']:g}/s, {traffic['deny_rate']:.1%} denied, "
        f"burst ratio {traffic['burst_ratio']:g}; {traffic['total_requests']} in all"
    )
    for line in _regions(found["regions"]):
        screen.write(line)
    screen.write()
    divided = found["free_shards"] is not None
    heads = ("NODE", "ADDRESS", "STATE", "SINCE", "REQUESTS", "DENIED")
    print_table(
        (*heads, *SHARD_HEADS) if divided else heads,
        [
            (
                node["id"],
                node["address"],
                "Draining" if node["draining"] else node["state"],
                node["registered_at"][:19].replace("T", " "),
                node["requests"],
                node["denied"],
                *(_shards(node["shards"]) if divided else ()),
            )
            for node in found["nodes"]
        ],
    )


def _off(switch: dict[str, Any]) -> list[str]:
    """Which limits are turned off."""
    off = {"all": switch["reason"]} if switch["everything"] else switch["rules"]
    return [
        f"  limits    OFF: {escaped(what)}{f' ({escaped(why)})' if why else ''}"
        for what, why in off.items()
    ]


def _regions(regions: dict[str, Any]) -> list[str]:
    """The links to other regions, and which promises hold."""
    if regions["region"] is None:
        return []
    lines = [f"  region    {regions['region']}, of {1 + len(regions['others'])}"]
    for one in regions["others"]:
        lag = one["lag_seconds"]
        words = {
            "none": "is told nothing",
            "up": f"hears us, {lag or 0:.1f} s late; told by {one['shipper']}",
            "cut": "CANNOT BE HEARD" + (f": {one['problem']}" if one["problem"] else ""),
        }
        lines.append(f"    {one['region']:<8}{escaped(words[one['link']])}")
    lines += [f"  {mode:<10}{promise}" for mode, promise in regions["promises"].items()]
    return lines + _rights(regions)


def _rights(regions: dict[str, Any]) -> list[str]:
    """What became of rights, as the node that was asked has seen it."""
    rights = regions["rights"]
    if rights is None:
        return []
    many = rights["windows"]
    windows = f"{many} key{'' if many == 1 else 's'} whose rights have moved"
    lost = f"; {rights['lost']} units LOST on the way" if rights["lost"] else ""
    lines = [f"  rights    {rights['held']} of {windows}, as this node knows{lost}"]
    for one in regions["others"]:
        moved = one["rights"]
        if any(moved.values()):
            silent = f" ({moved['unanswered']} times in vain)" if moved["unanswered"] else ""
            words = f"asked {moved['asked']} times{silent}, got {moved['received']}, gave {moved['given']}"
            lines.append(f"    {one['region']:<8}{words}")
    return lines


def _store(found: dict[str, Any]) -> str:
    """The kind of store and, if keys are sharded, how many nodes own shards."""
    store, free = found["health"]["store"], found["free_shards"]
    if store["kind"] == "memory":
        return "memory"
    text = f"{store['kind']}, {STATES[store['state']]}"
    if free is None:
        return text
    owned = [node["shards"]["owned"] for node in found["nodes"] if node["shards"]]
    owners = sum(map(bool, owned))
    text += f": {sum(owned) + free} shards on {owners} node{'' if owners == 1 else 's'}"
    return f"{text}, {free} of them without an owner" if free else text


def _shards(told: dict[str, Any] | None) -> tuple[Any, ...]:
    """How many shards a node owns, how long its commits take, and what is unconfirmed."""
    if told is None:
        return ("-",) * len(SHARD_HEADS)
    commits = [told["commit_p50_us"], told["commit_p99_us"]]
    took = "-" if None in commits else " / ".join(f"{one / 1000:.1f}" for one in commits) + " ms"
    lag = f"{told['unconfirmed']}, {told['commit_age_us'] / 1000:.1f} ms"
    return told["owned"], took, lag
