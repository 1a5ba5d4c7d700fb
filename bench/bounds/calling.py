"""The service's application, called without a socket: what it answers, without what a client or a server costs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headgate.service.app import build_app
from headgate.service.node import Node
from headgate.service.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

HEADERS: Final = ((b"host", b"localhost"), (b"content-type", b"application/json"))


class Endpoint(NamedTuple):
    """Something that reads a body."""

    method: str
    path: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Answer(NamedTuple):
    """What came back."""

    status: int
    body: bytes


class Calling:
    """A node that counts in memory and knows no rules but those of its settings, with its application."""

    def __init__(self, **settings: Any) -> None:
        self.node = Node(Settings(**settings))
        self._app: Any = build_app(self.node)
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.run(self.node.start())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self.node.stop())
        self._runner.close()

    def endpoints(self) -> Iterator[Endpoint]:
        """All that read a body; in the place of a path's parameter stands a word."""
        for path, methods in self._app.openapi()["paths"].items():
            for method, about in methods.items():
                if "requestBody" in about:
                    words = path.replace("{key}", "k").replace("{rule_id}", "r")
                    yield Endpoint(method.upper(), words)

    def ask(self, endpoint: Endpoint, body: bytes) -> Answer:
        """Send one request."""
        return self._runner.run(self._ask(endpoint, body))

    async def _ask(self, endpoint: Endpoint, body: bytes) -> Answer:
        path, _, query = endpoint.path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": endpoint.method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [*HEADERS, (b"content-length", str(len(body)).encode())],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 80),
        }
        sent: list[dict[str, Any]] = []
        unread = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if not unread:  # The client stays to hear the answer.
                await asyncio.Event().wait()
            return unread.pop()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        content = b"".join(message.get("body", b"") for message in sent)
        return Answer(sent[0]["status"], content)
