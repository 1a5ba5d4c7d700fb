"""A name server on this machine that answers what a test has told it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING, Self

from tests.servers.process import HOST

if TYPE_CHECKING:
    from types import TracebackType

A, IN = 1, 1
ANSWER, NAME_ERROR = 0x8580, 0x8583
TO_THE_QUESTION = 0xC00C
"""Instead of a name: the one that was asked for."""
SECONDS = 1


class NameServer:
    """Knows IPv4 addresses by name; `addresses` may change at any time."""

    def __init__(self, addresses: dict[str, list[str]]) -> None:
        self.addresses = addresses
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((HOST, 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # It is closed.
            while True:
                question, sender = self._socket.recvfrom(512)
                if not question:
                    return
                self._socket.sendto(self._answer(question), sender)

    def _answer(self, question: bytes) -> bytes:
        labels, at = [], 12
        while length := question[at]:
            labels.append(question[at + 1 : at + 1 + length].decode())
            at += 1 + length
        asked = question[12 : at + 5]
        (kind,) = struct.unpack(">H", asked[-4:-2])
        known = self.addresses.get(".".join(labels))
        found = known if known and kind == A else []
        flags = NAME_ERROR if known is None else ANSWER
        head = question[:2] + struct.pack(">5H", flags, 1, len(found), 0, 0)
        record = struct.pack(">3HIH", TO_THE_QUESTION, A, IN, SECONDS, 4)
        return head + asked + b"".join(record + socket.inet_aton(one) for one in found)
