"""Messages between regions, as a link saw them pass: to be delivered again, late and out of order."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from tests.servers.process import HOST

if TYPE_CHECKING:
    import random

    from tests.servers.link import Link

MARK = b"HG.REGION"
MOST = 400
"""How many messages are kept; the oldest go first."""


class RegionReplay:
    """Keeps the messages that pass a link, and sends copies of them to the node at its end."""

    def __init__(self, link: Link) -> None:
        self._port = link.server_port
        self._messages: list[bytes] = []
        self._pending: dict[int, bytes] = {}
        self.repeated = 0
        """Copies that were answered."""
        link.tap = self._seen

    def __len__(self) -> int:
        return len(self._messages)

    def again(self, rng: random.Random, most: int = 40) -> None:
        """Deliver some of them once more, in any order, each on a connection of its own."""
        known = list(self._messages)
        for message in rng.sample(known, min(most, len(known))):
            with socket.create_connection((HOST, self._port), timeout=10) as line:
                line.sendall(message)
                self.repeated += bool(line.recv(65_536))

    def _seen(self, connection: int, chunk: bytes) -> None:
        text = self._pending.pop(connection, b"") + chunk
        while True:
            end = _end_of_command(text)
            if end is None:
                break
            command, text = text[:end], text[end:]
            if MARK in command[:40]:
                self._messages = [*self._messages[-MOST + 1 :], command]
        self._pending[connection] = text


def _end_of_command(text: bytes) -> int | None:
    """Where the first command ends, `*2 $9 HG.REGION $40 …`; none if it is not all there."""
    line = text.find(b"\r\n")
    if line < 0:
        return None
    assert text[:1] == b"*", text[:40]
    at = line + 2
    for _ in range(int(text[1:line])):
        line = text.find(b"\r\n", at)
        if line < 0:
            return None
        at = line + 2 + int(text[at + 1 : line]) + 2
    return at if at <= len(text) else None
