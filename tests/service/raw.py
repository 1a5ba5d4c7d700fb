"""A client that sends exactly the bytes it is told to, and reads answers one by one."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from tests.servers.process import HOST

if TYPE_CHECKING:
    from types import TracebackType


@dataclass(frozen=True, slots=True)
class Answer:
    """One response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """What the body says."""
        return json.loads(self.body)


class Raw:
    """One connection."""

    def __init__(self, port: int, *, timeout: float = 10.0) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> Self:
        """Send these bytes."""
        self.socket.sendall(data)
        return self

    def answer(self) -> Answer:
        """The next response, whole; an interim one (100) counts."""
        while b"\r\n\r\n" not in self._read:
            self._more()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        status = int(first.split()[1])
        if headers.get("transfer-encoding") == "chunked":
            return Answer(status, headers, self._chunks())
        length = int(headers.get("content-length", "0"))
        while len(self._read) < length:
            self._more()
        body, self._read = self._read[:length], self._read[length:]
        return Answer(status, headers, body)

    def answers(self, count: int) -> list[Answer]:
        """The next responses."""
        return [self.answer() for _ in range(count)]

    def is_closed(self) -> bool:
        """Whether the server ends the connection now, with nothing more to say."""
        try:
            return self._read == b"" and self.socket.recv(65_536) == b""
        except ConnectionResetError:
            return True

    def _chunks(self) -> bytes:
        body = b""
        while True:
            while b"\r\n" not in self._read:
                self._more()
            size, _, self._read = self._read.partition(b"\r\n")
            count = int(size, 16)
            while len(self._read) < count + 2:
                self._more()
            body += self._read[:count]
            self._read = self._read[count + 2 :]
            if not count:
                return body

    def _more(self) -> None:
        data = self.socket.recv(65_536)
        if not data:
            raise ConnectionError(f"the server closed, after {self._read!r}")
        self._read += data


def post(
    body: bytes | dict[str, Any],
    path: str = "/check",
    *lines: str,
    version: str = "1.1",
    media: str | None = "application/json",
) -> bytes:
    """A POST as bytes, with its length; `lines` are more headers."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"POST {path} HTTP/{version}", "Host: localhost", f"Content-Length: {len(content)}"]
    if media is not None:
        head.append(f"Content-Type: {media}")
    return "\r\n".join([*head, *lines, "", ""]).encode("latin-1") + content


def chunked(body: bytes, path: str = "/check", size: int = 7) -> bytes:
    """A POST whose body comes in chunks."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    ).encode()
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in pieces) + b"0\r\n\r\n"
