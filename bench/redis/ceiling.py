"""The server's ceiling: how many decisions it could make if clients cost nothing.

The very calls that our engine sends, 128 checks each, are packed beforehand; a bare socket writes them and a
parser in C reads the replies, of which nothing is made. A few calls are always under way, so the server
never waits. What our engine reaches of this is what its Python leaves over.
"""

from __future__ import annotations

import random
import socket
from typing import TYPE_CHECKING, Any

import hiredis

from headgate.engines.redis.codec import Codec
from headgate.engines.redis.keys import KeyCodec
from headgate.engines.redis.operations import Operations
from headgate.engines.redis.packed_requests import template_of
from headgate.engines.redis.scripts import library
from headgate.rate import limits_of

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from ..harness import Keys
    from .contenders import Quota

BATCH = 128
IN_FLIGHT = 8
PREPARED = 64


class Ceiling:
    """Asks the server as fast as it can answer. A slice must be whole batches."""

    def __init__(self, algorithm: str, port: int, quota: Quota, keys: Keys) -> None:
        (limit,) = limits_of(str(quota), algorithm)
        codec = Codec(KeyCodec("ceiling"), lambda: 0, test_clock=False)
        operations = Operations(codec, BATCH)
        plain = codec.plain_maker(limit, None)
        choices = random.Random(7).choices
        batches = [[plain(key) for key in choices(keys, k=BATCH)] for _ in range(PREPARED)]
        self._calls = [
            hiredis.pack_command(operations.routed(0, batch, template_of(batch)).command)
            for batch in batches
        ]
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()
        self._next = 0
        load: Any = (b"FUNCTION", b"LOAD", b"REPLACE", library())
        self._socket.sendall(hiredis.pack_command(load))
        self._reply()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def run(self, keys: Keys) -> None:
        """Have as many checks decided as there are keys, whichever those are."""
        batches, rest = divmod(len(keys), BATCH)
        assert not rest
        for _ in range(min(IN_FLIGHT, batches)):
            self._send()
        for left in range(batches, 0, -1):
            reply = self._reply()
            assert len(reply) == 1 + 5 * BATCH
            if left > IN_FLIGHT:
                self._send()

    def _send(self) -> None:
        self._socket.sendall(self._calls[self._next])
        self._next = (self._next + 1) % PREPARED

    def _reply(self) -> Any:
        reader = self._reader
        while (reply := reader.gets()) is False:
            reader.feed(self._socket.recv(262_144))
        if isinstance(reply, Exception):
            raise reply
        return reply
