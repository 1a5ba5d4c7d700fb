"""A fleet of nodes that share a leased limit on a real server, and what came of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from struct import pack, unpack
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headgate import Limit
    from tests.servers.redis import RedisServer


@dataclass
class Fleet:
    """Running nodes, and once they have ended what each of them says."""

    nodes: list[subprocess.Popen[str]]
    tallies: list[Path]
    reports: list[dict[str, Any]] = field(default_factory=list)

    def begin(self) -> None:
        """Let all nodes hit."""
        for node in self.nodes:
            self._say(node)

    def end(self) -> None:
        """Stop those that live, and hear what they say."""
        for node in self.nodes:
            if node.poll() is None:
                self._say(node)
        for node in self.nodes:
            if node.poll() is None or node.returncode == 0:
                out, _ = node.communicate(timeout=60)
                self.reports.append(json.loads(out))

    @staticmethod
    def _say(node: subprocess.Popen[str]) -> None:
        assert node.stdin is not None
        node.stdin.write("\n")
        node.stdin.flush()

    def admitted(self) -> list[int]:
        """How many hits each node was allowed so far, also those that are dead."""
        return [unpack("q", tally.read_bytes())[0] for tally in self.tallies]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """When each admission began and ended, in order."""
        return sorted(map(tuple, chain.from_iterable(one["spans"] for one in self.reports)))

    @property
    def asked(self) -> int:
        """How many hits there were."""
        return sum(one["asked"] for one in self.reports)

    @property
    def fairness(self) -> float:
        """Jain's index of what the nodes were admitted: 1 if all got the same."""
        shares = [len(one["spans"]) for one in self.reports]
        return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


@contextmanager
def fleet(
    url: str,
    limit: Limit,
    key: str,
    paces: Sequence[float],
    environment: Mapping[str, str] | None = None,
    *,
    environments: Sequence[Mapping[str, str]] = (),
) -> Iterator[Fleet]:
    """Nodes that are ready to begin, one for each pace in hits a second; `environments` are those of single ones."""
    with TemporaryDirectory() as folder:
        tallies = [Path(folder) / str(number) for number in range(len(paces))]
        for tally in tallies:
            tally.write_bytes(pack("q", 0))
        command = [sys.executable, "-m", "tests.faults.lease_node", url, repr(limit), key]
        nodes = [
            subprocess.Popen(
                [*command, str(pace), tally],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **(environment or {}), **own},
            )
            for pace, tally, own in zip(
                paces, tallies, environments or [{}] * len(paces), strict=True
            )
        ]
        try:
            for node in nodes:
                assert node.stdout is not None
                assert node.stdout.readline() == "ready\n"
            yield Fleet(nodes, tallies)
        finally:
            for node in nodes:
                node.kill()
                node.communicate()


def calls_of(server: RedisServer) -> int:
    """How many questions of ours the server has answered."""
    stats = str(server.call("INFO", "commandstats"))
    return sum(
        map(int, re.findall(r"^cmdstat_(?:fcall|evalsha|eval):calls=(\d+)", stats, re.MULTILINE))
    )
