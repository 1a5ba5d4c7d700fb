"""Apps on real servers, and requests to apps without one."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.servers.process import HOST, Server, free_ports

with warnings.catch_warnings():  # Starlette would rather have another HTTP client.
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient, WebSocketDenialResponse as Denied

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["UVICORN", "AppServer", "Denied", "TestClient", "ask", "serving", "statuses"]


def ask(
    app: Any,
    *paths: str,
    method: str = "GET",
    client: str = "203.0.113.9",
    headers: Mapping[str, str] | None = None,
) -> list[httpx.Response]:
    """Send requests to an ASGI app, one after the other."""

    async def asking() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app, client=(client, 1234), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as http_client:
            return [await http_client.request(method, path, headers=headers) for path in paths]

    return asyncio.run(asking())


def statuses(app: Any, *paths: str, **how: Any) -> list[int]:
    """What they are answered, in short."""
    return [response.status_code for response in ask(app, *paths, **how)]


@functools.cache
def _client() -> httpx.Client:
    """For single requests, each on a connection of its own: to make a client takes longer than to ask."""
    return httpx.Client(timeout=20, limits=httpx.Limits(max_keepalive_connections=0))


class AppServer(Server):
    """A server with an app, as a process of its own."""

    port: int

    def get(self, path: str = "/", headers: Mapping[str, str] | None = None) -> httpx.Response:
        """Send one request."""
        return _client().get(f"http://{HOST}:{self.port}{path}", headers=headers)


@contextlib.contextmanager
def serving(
    source: str, *command: str, environment: Mapping[str, str] | None = None
) -> Iterator[AppServer]:
    """Serve `main:app` of a source file by `python -m command`, with `{port}` filled in."""
    (port,) = free_ports(1)
    arguments = [part.format(port=port) for part in command]
    with tempfile.TemporaryDirectory(prefix="headgate-app-") as folder:
        (Path(folder) / "main.py").write_text(source)
        running = AppServer(
            [sys.executable, "-m", *arguments],
            folder=Path(folder),
            ready=lambda: _answers(port),
            environment=environment,
            start_within_s=60.0,
        )
        running.port = port
        with running:
            yield running


UVICORN = ("uvicorn", "main:app", "--host", HOST, "--port", "{port}", "--log-level", "warning")


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/ready")
            connection.getresponse()
        except (OSError, http.client.HTTPException):
            return False
        return True
