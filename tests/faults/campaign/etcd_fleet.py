"""Three nodes on three etcd servers: all on this machine, or each node with its server on a machine of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headgate import FixedWindow, SlidingLog, SlidingWindow, TokenBucket
from headgate.service.security.tokens import new_token, write_tokens
from tests.faults.campaign.fleet import NODES, ROOT, FaultNode, Fleet, FleetTerms
from tests.faults.campaign.node import LATE_MS, NAME_SERVER, new_figures
from tests.servers.clock import MovableClock
from tests.servers.etcd import etcd
from tests.servers.machines import machines
from tests.servers.process import free_ports, wait_until
from tests.service.running import Service, _answers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headgate import Limit

ETCD: Final = ("etcd", "machines")
"""What fleets on etcd there are."""
SHARDS: Final = 16
TTL_S: Final = 3
DAY_US: Final = 86_400_000_000
LONG_LIMITS: Final[Mapping[str, Limit]] = {
    "fixed": FixedWindow(15, 1_000_000),
    "sliding": SlidingWindow(15, 1_000_000),
    "bucket": TokenBucket(9, 1_000_000, 6),
    "day": FixedWindow(200, DAY_US),
    "log": SlidingLog(60, 60_000_000),
    "small": FixedWindow(2, 1_000_000),
}
"""Some go on for longer than any fault, so that what a next owner does not know of shows."""
DEADLINE_MS: Final = 1_000
MARGIN_MS: Final = 5
CLUSTERS = itertools.count(1)
WITHIN_S: Final = 60.0


@contextlib.contextmanager
def etcd_fleet(
    topology: str = "etcd",
    policy: str = "closed",
    engine: str = "",
    *,
    quota_bytes: int = 0,
    unconfirmed: int = 0,
    program: str | None = None,
) -> Iterator[Fleet]:
    """Servers and nodes; with `unconfirmed` so many answers may be given before etcd has them.

    `program` is another etcd than the one that is installed.
    """
    mode = "leased" if unconfirmed else "exact"
    terms = FleetTerms(
        "etcd", mode, LONG_LIMITS, epsilon_us=20_000, drain_us=6_000_000, unconfirmed=unconfirmed,
    )  # fmt: skip
    quota = ("--quota-backend-bytes", str(quota_bytes)) if quota_bytes else ()
    options = ("--pre-vote", *quota)
    with contextlib.ExitStack() as stack:
        made = Fleet([], policy=policy, terms=terms)
        if topology == "machines":
            made.machines = stack.enter_context(machines(NODES))
        placed = made.machines.all if made.machines is not None else []
        made.etcd = stack.enter_context(
            etcd(NODES, options=options, machines=placed, program=program)
        )
        made.engine = (
            f"etcd://{made.etcd.hosts}/c{next(CLUSTERS)}?shards={SHARDS}&ttl={TTL_S}&consistency={mode}"
            + (f"&unconfirmed={unconfirmed}" if unconfirmed else "")
            + (f"&{engine}" if engine else "")
        )
        tokens = _tokens(stack, made) if made.machines is not None else ()
        for number in range(NODES):
            made.nodes.append(_node(stack, made, number, tokens))
            stack.enter_context(made.nodes[-1].running)
        if made.machines is None:
            made.spare = _node(stack, made, NODES, tokens)
            stack.callback(made.spare.running.kill)
        made.wait_until_even = lambda: wait_until_shared(made, NODES)
        made.wait_until_decided_by_store(WITHIN_S)
        yield made


def _tokens(stack: contextlib.ExitStack, made: Fleet) -> tuple[str, ...]:
    """Options for nodes that are not alone on their machine: their token, and where it is kept."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-faults-")))
    made.token, kept = new_token("nodes", "operator", now=datetime.now(UTC))
    write_tokens(folder / "tokens.json", [kept])
    (folder / "token").write_text(made.token)
    made.engine += f"&peer_token_file={folder / 'token'}"
    return ("--host", "0.0.0.0", "--tokens", str(folder / "tokens.json"))  # noqa: S104


def _node(
    stack: contextlib.ExitStack, made: Fleet, number: int, tokens: tuple[str, ...]
) -> FaultNode:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-faults-")))
    machine = made.machines.all[number] if made.machines is not None else None
    clock = MovableClock(folder)
    port, resp_port = free_ports(2)
    figures = folder / "figures"
    new_figures(figures)
    url = made.engine + (f"&listen={machine.host}:{resp_port}" if machine else "")
    command = [
        sys.executable, "-m", "tests.faults.campaign.node", str(figures), "serve", *tokens,
        "--port", str(port), "--resp-port", str(resp_port), "--engine", url,
        "--set", f"nodes={NODES}", "--set", f"on_error={made.policy}",
    ]  # fmt: skip
    environment = {
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "HEADGATE_STATE_DIR": str(folder), "HOME": str(folder),
        "PATH": os.environ.get("PATH", ""), NAME_SERVER: str(made.name_server),
        LATE_MS: str(DEADLINE_MS + MARGIN_MS), **clock.environment,
    }  # fmt: skip
    running = Service(
        machine.inside(command) if machine else command, folder=folder,
        ready=lambda: _answers(port, tls=False, host=running.host), environment=environment,
        start_within_s=WITHIN_S,
    )  # fmt: skip
    running.port = port
    if machine is not None:
        running.host = machine.access
    return FaultNode(
        f"node {number}", running, figures, clock=clock, machine=machine, resp_port=resp_port
    )


def shards_of(made: Fleet, node: FaultNode) -> int:
    """How many shards a node decides; none if it does not say."""
    headers = {"Authorization": f"Bearer {made.token}"} if made.token else {}
    with contextlib.suppress(OSError):
        _, _, text = node.running.ask("GET", "/metrics", headers=headers)
        for line in str(text).splitlines():
            if line.startswith("headgate_etcd_shards "):
                return int(float(line.split()[1]))
    return 0


def wait_until_shared(made: Fleet, count: int, but: FaultNode | None = None) -> None:
    """Wait until so many of the nodes have all shards among them."""
    nodes = [*made.nodes, *([made.spare] if made.spare is not None else [])]

    found: dict[str, int] = {}

    def shared() -> bool:
        found.clear()
        found.update(
            {
                one.name: shards_of(made, one)
                for one in nodes
                if one is not but and one.running.running
            }
        )
        return sum(found.values()) == SHARDS and sum(map(bool, found.values())) == count

    try:
        wait_until(shared, f"{count} nodes have all shards", within_s=WITHIN_S)
    except TimeoutError as late:
        raise TimeoutError(f"{late}: {found}") from None
