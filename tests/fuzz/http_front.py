"""Fuzzing the HTTP front: random requests in random packets, over connections that share what the service remembers.

Held against a strict reader: what the service carries out is what that reader sees, in its order, each with its own
body, and nothing behind the first byte that could be read in two ways. Requests that nobody can misread are all carried
out.

    python -m tests.fuzz.http_front 1000000 1
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.server import ServerState

from headgate.service.http.connection import IDLE
from headgate.service.http.protocol import bound_to
from headgate.service.node import Node
from headgate.service.settings import Settings
from tests.fuzz.strict_http import Asked, Stream, read_stream

if TYPE_CHECKING:
    from headgate.service.http.endpoints import Endpoint
    from headgate.service.http.problems import Reply

REQUESTS: Final = 1_000_000
"""How many `make fuzz` sends."""
MAX_BODY: Final = 2_000
HOT: Final = (b"/check", b"/check/batch", b"/decide")
PROBE: Final = b"\r\n\r\nPUT /probe HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
"""A request that ends whatever came before it."""
TURNS: Final = 100
"""Turns of the loop that a stream may take until it is quiet."""


class Wire(asyncio.Transport):
    """The server's end of a connection whose packets are cut by hand; a client that may stop reading for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0
        self.closed = False
        self.paused = False

    def write(self, data: Any) -> None:
        self.sent += len(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        return None

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class Front:
    """The protocol of a service, with endpoints and an application that note what they are asked."""

    def __init__(self) -> None:
        self.done: list[Asked] = []
        node = Node(Settings(max_body=MAX_BODY, max_batch_body=MAX_BODY))
        routes = {path: (self._endpoint(path), False, MAX_BODY) for path in HOT}
        config = uvicorn.Config(
            self._app,
            http=bound_to(node, routes),
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
        )
        config.load()
        kind: Any = config.http_protocol_class
        self._config, self._kind, self._state = config, kind, ServerState()
        self.heads = kind.heads
        self.turns = TURNS

    def _endpoint(self, path: bytes) -> Endpoint:
        def note(body: bytes, as_status: bool) -> Reply:  # noqa: FBT001
            del as_status
            self.done.append(Asked(b"POST", path, body))
            return (200, b"content-type: application/json\r\n", b"{}")

        return note

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        target = scope["raw_path"] + (
            b"?" + scope["query_string"] if scope["query_string"] else b""
        )
        self.done.append(Asked(scope["method"].encode(), target, body))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def connected(self) -> tuple[Any, Wire]:
        """A new connection: the server's side of it, and its end of the wire."""
        self.done = []
        wire = Wire()
        protocol: Any = self._kind(config=self._config, server_state=self._state, app_state={})
        protocol.connection_made(wire)
        return protocol, wire

    async def play(self, packets: list[bytes], chance: random.Random) -> tuple[list[Asked], bool]:
        """What is carried out of these packets, and whether the service has closed."""
        protocol, wire = self.connected()
        for packet in packets:
            await self.quiet(wire, protocol, wait=False)
            protocol.data_received(packet)
            if chance.random() < 0.1:
                protocol.pause_writing()
                await asyncio.sleep(0)
                protocol.resume_writing()
            if chance.random() < 0.3:
                await asyncio.sleep(0)
        await self.quiet(wire, protocol, wait=True)
        ended = wire.closed or protocol._ignores_input
        protocol.connection_lost(None)
        return self.done, ended

    async def quiet(self, wire: Wire, protocol: Any, *, wait: bool) -> None:
        """Wait until the connection may be read from; at its end, until it has nothing left to do."""
        for _ in range(self.turns):
            busy = protocol._unfed or protocol._in_app or protocol.pipeline
            if wire.closed or not (wire.paused or (wait and busy)):
                return
            await asyncio.sleep(0)
        if protocol._phase == IDLE or protocol._unfed:  # Else it waits for the rest of a request.
            raise AssertionError("the connection never came to rest")


def _flipped(whole: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(whole))
    return whole[:at] + bytes([whole[at] ^ (1 << chance.randrange(8))]) + whole[at + 1 :]


class Maker:
    """Makes streams: honest requests, crooked ones, and bodies that look like requests."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self._known: list[bytes] = []

    def stream(self) -> list[bytes]:
        """The requests of one connection, as bytes."""
        return [self.request() for _ in range(self.chance.randint(1, 6))]

    def request(self) -> bytes:
        chance = self.chance
        if self._known and chance.random() < 0.25:
            # A head that was sent before, with something else behind it.
            return chance.choice(self._known) + self.body()
        whole = self.honest() if chance.random() < 0.6 else self.crooked()
        if len(self._known) < 200 or chance.random() < 0.05:
            head = whole[: whole.find(b"\r\n\r\n") + 4]
            if len(self._known) >= 200:
                self._known[chance.randrange(200)] = head
            else:
                self._known.append(head)
        return whole

    def body(self) -> bytes:
        chance = self.chance
        pieces = (
            b"",
            b"{}",
            b'{"key":"a"}',
            b'{"key":"a","limit":5}',
            b"PUT /api/bans/victim HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
            b"POST /check HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
            b"\r\n\r\n",
            b"0\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        )
        body = b"".join(chance.choices(pieces, k=chance.choice((1, 1, 1, 2, 3))))
        if chance.random() < 0.02:
            body += b"x" * chance.randrange(6_000)
        return body

    def honest(self) -> bytes:
        chance = self.chance
        body = self.body()
        method, target = chance.choice(
            (
                (b"POST", b"/check"),
                (b"POST", b"/check"),
                (b"POST", b"/check/batch"),
                (b"POST", b"/decide"),
                (b"PUT", b"/api/bans/k"),
                (b"GET", b"/page"),
                (b"POST", b"/reserve"),
            )
        )
        fields = [
            b"Host: " + chance.choice((b"x", b"localhost")),
            b"Content-Type: application/json",
        ]
        if chance.random() < 0.2:
            fields.append(b"X-Request-Id: %d" % chance.randrange(1_000_000))
        if chance.random() < 0.2:
            fields.append(b"Connection: keep-alive")
        if chance.random() < 0.15:
            fields.append(b"Transfer-Encoding: chunked")
            content = self._chunked(body)
        else:
            fields.append(b"Content-Length: %d" % len(body))
            content = body
        if chance.random() < 0.5:
            chance.shuffle(fields)
        return b"\r\n".join([b"%b %b HTTP/1.1" % (method, target), *fields, b"", b""]) + content

    def _chunked(self, body: bytes) -> bytes:
        size = self.chance.randint(1, 40)
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        return b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in pieces) + b"0\r\n\r\n"

    def crooked(self) -> bytes:
        """A request with something wrong, rare or merely odd in it."""
        chance = self.chance
        whole = self.honest()
        for _ in range(chance.choice((1, 1, 2))):
            whole = chance.choice(self.TWISTS)(whole, chance)
        return whole

    TWISTS: Final = (
        lambda w, _: w.replace(b"application/json", b"text/plain", 1),
        lambda w, _: w.replace(b"application/json", b"application/json; charset=utf-8", 1),
        lambda w, c: w.replace(b"\r\n", b"\n", c.randint(1, 3)),
        lambda w, _: w.replace(b"\r\n", b"\r\n ", 1),
        lambda w, _: w.replace(b": ", b" : ", 1),
        lambda w, _: w.replace(b": ", b":", 3),
        lambda w, _: w.replace(b": ", b":  \t", 2),
        lambda w, _: w.replace(b"Content-Length: ", b"Content-Length: 0", 1),
        lambda w, _: w.replace(b"Content-Length: ", b"Content-Length: +", 1),
        lambda w, _: w.replace(b"Content-Length: ", b"Content-Length: 0x", 1),
        lambda w, _: w.replace(b"Content-Length: ", b"Content-Length: 1", 1),
        lambda w, _: w.replace(b"Content-Length: ", b"content-length:", 1),
        lambda w, _: w.replace(b"Content-Length: ", b"Content_Length: ", 1),
        lambda w, c: w.replace(b"Host", b"Content-Length: %d\r\nHost" % c.randrange(40), 1),
        lambda w, _: w.replace(b"Host", b"Transfer-Encoding: chunked\r\nHost", 1),
        lambda w, _: w.replace(b"Host", b"Transfer-Encoding: identity\r\nHost", 1),
        lambda w, _: w.replace(b"chunked", b"Chunked", 1),
        lambda w, _: w.replace(b"chunked", b"chunked, chunked", 1),
        lambda w, _: w.replace(b"chunked", b"\x0bchunked", 1),
        lambda w, _: w.replace(b"Host", b"Expect: 100-continue\r\nHost", 1),
        lambda w, _: w.replace(b"Host", b"Content-Encoding: gzip\r\nHost", 1),
        lambda w, _: w.replace(b"Host", b"Connection: close\r\nHost", 1),
        lambda w, _: w.replace(b"Host", b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\nHost", 1),
        lambda w, _: w.replace(b"Host", b"Origin: http://evil.example\r\nHost", 1),
        lambda w, _: w.replace(b"Host", b"Host: y\r\nHost", 1),
        lambda w, _: w.replace(b"Host: x\r\n", b"", 1),
        lambda w, _: w.replace(b"Host", b"X: \x00\r\nHost", 1),
        lambda w, _: w.replace(b"Host", b"X: \r\r\nHost", 1),
        lambda w, _: w.replace(b"Host", b"X: \xff\r\nHost", 1),
        lambda w, _: w.replace(b"Host", b": \r\nHost", 1),
        lambda w, _: w.replace(b" HTTP/1.1", b"  HTTP/1.1", 1),
        lambda w, _: w.replace(b" HTTP/1.1", b" HTTP/1.0", 1),
        lambda w, _: w.replace(b" HTTP/1.1", b" http/1.1", 1),
        lambda w, _: w.replace(b"POST", b"post", 1),
        lambda w, _: b"\r\n" + w,
        lambda w, _: w + b"\r\n",
        lambda w, _: w + b"POST",
        lambda w, _: w[:-1],
        lambda w, c: w[: c.randrange(len(w) + 1)],
        _flipped,
    )  # fmt: skip

    def packets(self, stream: bytes) -> list[bytes]:
        """The same bytes, cut somewhere; often where it hurts."""
        chance = self.chance
        if chance.random() < 0.3:
            return [stream]
        cuts = {chance.randrange(len(stream) + 1) for _ in range(chance.randrange(6))}
        if chance.random() < 0.7:
            at = 0
            while (at := stream.find(b"\r\n\r\n", at) + 4) > 3:
                if chance.random() < 0.5:
                    cuts.add(at)
        ends = [*sorted(cuts), len(stream)]
        begins = [0, *ends]
        return [stream[a:b] for a, b in zip(begins, ends, strict=False) if a < b]


def complaint(found: list[Asked], ended: bool, meant: Stream) -> str | None:  # noqa: FBT001
    """What is wrong with what was carried out; `None` if nothing is."""
    expected = [(one.method, one.target, one.body) for one in meant.requests]
    done = [(one.method, one.target, one.body) for one in found]
    at = 0
    for one in done:
        # A request may have been refused, and the next one carried out; but none that is not there.
        while at < len(expected) and expected[at] != one:
            at += 1
        if at == len(expected):
            return f"carried out {one}, which nobody sent"
        at += 1
    if meant.doubtful and not ended:
        return "went on behind what can be read in two ways"
    plain = [(one.method, one.target, one.body) for one in meant.requests if _must_be_done(one)]
    if not ended and not meant.doubtful:
        left = list(done)
        for one in plain:
            if one not in left:
                return f"did not carry out {one}"
            left.remove(one)
    return None


def _must_be_done(one: Asked) -> bool:
    """Whether nothing in this request could be a reason to refuse it."""
    fields = dict(one.fields)
    is_json = fields.get(b"content-type") == b"application/json"
    return (
        is_json
        and len(one.body) <= MAX_BODY
        and not {b"content-encoding", b"expect", b"origin", b"upgrade"} & fields.keys()
    )


async def misread(front: Front, packets: list[bytes], chance: random.Random) -> str | None:
    """What is wrong with what a service makes of these packets; `None` if nothing is."""
    meant = read_stream(b"".join(packets))
    found, ended = await front.play(packets, chance)
    if meant.doubtful and not ended:
        # It may be waiting for the end of what is in doubt. Had it gone on, it would carry out what comes next.
        found, _ = await front.play([*packets, PROBE], chance)
        ended = True
    return complaint(found, ended, meant)


async def _fuzz(executions: int, seed: int) -> int:
    chance = random.Random(seed)
    front, maker = Front(), Maker(chance)
    sent = 0
    while sent < executions:
        requests = maker.stream()
        packets = maker.packets(b"".join(requests))
        wrong = await misread(front, packets, chance)
        if wrong is not None:
            raise AssertionError(f"seed {seed}, after {sent} requests: {wrong}\n{packets!r}")
        sent += len(requests)
    return len(front.heads)


def run(executions: int, seed: int) -> None:
    """Send so many requests; an `AssertionError` tells the packets that were misread."""
    remembered = asyncio.run(_fuzz(executions, seed))
    assert remembered, "no head was ever remembered"


if __name__ == "__main__":
    given = [int(one) for one in sys.argv[1:3]]
    count, first = [*given, *(REQUESTS, 1)[len(given) :]]
    began = time.monotonic()
    run(count, first)
    print(f"{count} requests in {time.monotonic() - began:.0f} s, none of them misread")  # noqa: T201
