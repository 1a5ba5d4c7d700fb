"""One region in a network of its own: a process with a Redis, a node and a client. `namespace_fleet` starts it.

It does what it is told by lines of JSON on its standard input, and answers each with a line.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from headgate.lab.recorder import HistoryRecorder
from tests.faults.judged_regions import HistoryRun, Load, ask_until, counters_of
from tests.servers.redis.server import standalone
from tests.service.resp_node import RespNode, resp_node


def main() -> None:
    """Serve until there is nothing more to do."""
    said = json.loads(sys.argv[1])
    listen, name = said.pop("listen"), said["region"]
    with (
        standalone("redis-7.0") as store,
        resp_node(url=store.url, listen=listen, node_id=name, **said) as node,
    ):
        print(json.dumps("ready"), flush=True)  # noqa: T201
        for line in sys.stdin:
            verb, *words = json.loads(line)
            print(json.dumps(answer(node, name, verb, *words)), flush=True)  # noqa: T201


def answer(node: RespNode, region: str, verb: str, *words: Any) -> Any:
    """What a line asks for."""
    exchange = node.node.exchange
    assert exchange is not None
    match verb, *words:
        case ("hears",):
            return all(link.up for link in exchange.links())
        case ("charged",):
            return exchange.charged_units
        case "known", key:
            return node.wait(counters_of(exchange, key))
        case "ask", path, user, ends, window_s, pace_s:
            load, run = Load(path, user, ends, window_s), HistoryRun()
            with HistoryRecorder.join(path) as recorder:
                client = ask_until(load, region, node.node.limiter, recorder, run, pace_s=pace_s)
                node.begin(client).result(120)
            return list(run.admitted.items())
    raise ValueError(verb)


if __name__ == "__main__":
    main()
