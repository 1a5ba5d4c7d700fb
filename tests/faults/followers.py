"""Nodes that follow rules in processes of their own, and somebody who changes rules behind Headgate's back."""

import base64
import contextlib
import http.client
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

FOLLOWER = Path(__file__).with_name("rule_follower.py")


class Follower:
    """A process that follows, and its log."""

    def __init__(self, url: str, folder: Path, name: str) -> None:
        self.log = folder / f"{name}.log"
        self.log.touch()
        self._errors = (folder / f"{name}.err").open("wb")
        self._command: list[str | Path] = [
            sys.executable,
            FOLLOWER,
            url,
            folder / f"{name}-state",
            self.log,
        ]
        self.process = self._started()

    def _started(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command, stderr=self._errors, stdout=self._errors)

    def restart(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process = self._started()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._errors.close()

    def lines(self) -> list[Any]:
        text = self.log.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def has(self, counter: int) -> bool:
        lines = self.lines()
        return bool(lines) and bool(lines[-1]["limits"]["counter"] >= counter)


def by_another_tool(url: str, name: str, data: bytes | None) -> None:
    """Change one node with a client that knows nothing of Headgate."""
    scheme, _, rest = url.partition("://")
    hosts, _, path = rest.partition("/")
    if scheme == "zookeeper":
        client = KazooClient(hosts)
        client.start()
        try:
            if data is None:
                client.delete(f"/{path}/{name}")
            elif client.exists(f"/{path}/{name}"):
                client.set(f"/{path}/{name}", data)
            else:
                client.create(f"/{path}/{name}", data)
        finally:
            client.stop()
            client.close()
        return
    key = base64.b64encode(f"/{path}/{name}".encode()).decode()
    body = {"key": key} if data is None else {"key": key, "value": base64.b64encode(data).decode()}
    act = "deleterange" if data is None else "put"
    with contextlib.closing(http.client.HTTPConnection(hosts.split(",")[0], timeout=5)) as link:
        link.request("POST", f"/v3/kv/{act}", body=json.dumps(body))
        assert link.getresponse().status == 200
