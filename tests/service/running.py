"""The service as a process of its own, on a free port, as an operator starts it."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.servers.process import HOST, Server, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Service(Server):
    """A running `headgate serve`."""

    port: int
    host = HOST

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], Any]:
        """Send one request on a connection of its own; status, headers in lower case, and what the body says."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        with contextlib.closing(connection):
            sent = None if body is None else json.dumps(body).encode()
            given = {"Content-Type": "application/json"} if sent is not None else {}
            connection.request(method, path, sent, {**given, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            content = answer.read()
            is_json = found.get("content-type", "").partition(";")[0].endswith(("/json", "+json"))
            return answer.status, found, json.loads(content) if is_json else content.decode()

    def check(self, key: str, **fields: Any) -> dict[str, Any]:
        """The answer to one check."""
        status, _, answer = self.ask("POST", "/check", {"key": key, **fields})
        assert status == 200, answer
        found: dict[str, Any] = answer
        return found

    def used(self, key: str) -> int:
        """What a key has used of the default limit; looking takes nothing."""
        return 100 - int(self.check(key, cost=0)["remaining"])

    def interrupt(self) -> None:
        """Tell it to end, and do not wait."""
        self._signal(signal.SIGTERM)

    def wait(self, within_s: float = 10.0) -> int:
        """Wait until it has ended; its exit code."""
        assert self._process is not None
        return self._process.wait(within_s)


@contextlib.contextmanager
def service(
    *options: str,
    environment: Mapping[str, str] | None = None,
    tls: bool = False,
    port: int | None = None,
) -> Iterator[Service]:
    """Start a service with these options, and end it; on a free port, if none is named."""
    port = free_ports(1)[0] if port is None else port
    command = [sys.executable, "-m", "headgate", "serve", "--port", str(port), *options]
    with tempfile.TemporaryDirectory(prefix="headgate-service-") as folder:
        running = Service(
            command,
            folder=Path(folder),
            ready=lambda: _answers(port, tls=tls),
            environment=environment,
            start_within_s=30.0,
        )
        running.port = port
        with running:
            yield running


def _answers(port: int, *, tls: bool, host: str = HOST) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=2)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/page.css")
            return connection.getresponse().status == 200
        except OSError as error:
            return tls and isinstance(error, ConnectionResetError)
        except http.client.HTTPException:
            return tls
