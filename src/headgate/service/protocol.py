"""The hot path: checks answered inside uvicorn's HTTP protocol, before any framework is asked.

The subclass takes only the plain case: an HTTP/1.1 `POST` to one of the fast paths, without `Expect` or `Upgrade`, while no request of
the same connection is with the application. Everything else takes uvicorn's own way to the ASGI route of the same path, which shares
decoder, endpoints and texts; so leaving the fast path never changes an answer.

Answers leave in the order of their requests. One that must wait for a store has a slot in a queue; those behind it wait in
theirs, and a request for the application that comes behind them is started when the queue is empty.

A head that has been parsed needs no parsing: clients send the same one again and again. What a plain head meant is remembered by its bytes,
and a packet that is such a head with its whole body behind it goes to its endpoint at once.

Each connection has one timer, which is set again only when it fires: a request costs it nothing. It ends connections that take too
long over the head of a request, over its body, or over doing nothing.

What is relied on of uvicorn's internals is listed in decision 0013; the minor version is pinned, and raw-socket tests hold every part.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from .endpoints import Later
from .media import WANTS_JSON, is_json
from .problems import (
    BAD_REQUEST,
    NOT_JSON,
    TIMED_OUT,
    TOO_LARGE,
    TOO_MANY,
    ProblemError,
    token_needed,
)

if TYPE_CHECKING:
    import asyncio

    from .endpoints import Endpoint
    from .node import Node
    from .problems import Reply

Head: TypeAlias = "tuple[Endpoint, bool, int]"
"""What a head asked for: the endpoint, whether a denial is told as a status, the length of the body."""

IDLE, HEAD, BODY = range(3)
"""What the client is expected to send next: anything, the rest of a head, the rest of a body."""

MAX_HEAD: Final = 65_536
MAX_HEADS: Final = 1_024
MAX_REMEMBERED: Final = 2_048
"""How many heads are remembered, and how many bytes each may have."""
MAX_WAITING: Final = 64
"""Answers of one connection that may wait for the store before we stop reading from it."""
LINGER: Final = 1.0
"""Seconds that a client has to read our last words and to close."""
CLOSE: Final = b"connection: close\r\n"
AS_STATUS: Final = b"x-headgate-status"
NO_JSON: Final = ProblemError(NOT_JSON, WANTS_JSON).reply()


class DeafError(Exception):
    """Stops the parser: the connection is about to be closed."""


class _Busy:
    """Stands where uvicorn looks for the request before, to say that it is not answered yet."""

    response_complete = False


BUSY: Final[Any] = _Busy()


class HotProtocol(HttpToolsProtocol):
    """One connection. `bound_to` makes the class that uvicorn is given."""

    # Slots, because uvicorn's own attributes fill the thirty that CPython looks up fast in a `__dict__`.
    __slots__ = (
        "_address",
        "_as_status",
        "_chunks",
        "_common",
        "_common_lines",
        "_deaf",
        "_endpoint",
        "_head",
        "_head_size",
        "_heads",
        "_hot",
        "_max_body",
        "_node",
        "_out",
        "_phase",
        "_refusal",
        "_since",
        "_size",
        "_slots",
        "_statuses",
        "_timed_phase",
        "_timer",
    )

    node: ClassVar[Node]
    hot: ClassVar[dict[bytes, tuple[Endpoint, bool]]]
    """Endpoints by what the request line says, and whether a denial is told as a status."""
    heads: ClassVar[dict[bytes, Head]]
    """Heads of plain requests that were parsed before."""
    connections_from: ClassVar[dict[str, int]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._node = self.node
        self._hot = self.hot
        self._heads = self.heads
        self._max_body = self.node.settings.max_body
        self._statuses = self.node.recorder.fast_answers
        self._common: list[tuple[bytes, bytes]] | None = None
        self._common_lines = b""
        self._endpoint: Endpoint | None = None
        self._as_status = False
        self._refusal: Reply | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._out: list[bytes] = []
        self._slots: deque[list[Any]] = deque()
        self._phase = IDLE
        self._timed_phase = IDLE
        self._since = self.loop.time()
        self._head = b""  # Of the request in this packet, if that may be worth remembering.
        self._head_size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._deaf = False  # Whether what the client sends is not listened to any more.
        self._address = ""

    # The life of a connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch the time, and count who is connected."""
        super().connection_made(transport)
        settings = self._node.settings
        self._timer = self.loop.call_later(settings.header_timeout, self._on_time)
        cap = settings.max_connections_per_ip
        if cap and self.client:
            self._address = self.client[0]
            count = self.connections_from.get(self._address, 0) + 1
            self.connections_from[self._address] = count
            if count > cap:
                detail = f"at most {cap} connections from one address are open at a time"
                self._refuse(ProblemError(TOO_MANY, detail))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        self._stop_timer()
        self._deaf = True
        self._slots.clear()
        if self._address:
            count = self.connections_from.get(self._address, 1) - 1
            if count:
                self.connections_from[self._address] = count
            else:
                self.connections_from.pop(self._address, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; what it finds to answer at once leaves in one write."""
        if self._deaf:
            return
        if self._phase == IDLE and self._take_known(data):
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._upgrade()
            return
        except httptools.HttpParserError:
            if not self._deaf:
                detail = "this is not a request that HTTP/1.1 allows; the connection is closed"
                self._refuse(ProblemError(BAD_REQUEST, detail))
            return
        if self._out:
            self._flush()
        if self._phase == IDLE:
            self._since = self.loop.time()
        elif not self._deaf:
            self._note_progress(len(data))

    def _take_known(self, data: bytes) -> bool:
        """Answer a packet that is a head we know and its whole body; false if it is anything else."""
        end = data.find(b"\r\n\r\n") + 4
        head = data[:end]
        known = self._heads.get(head)
        if known is None:
            self._head = head
            return False
        endpoint, as_status, length = known
        if len(data) - end != length or self.pipeline or self._in_app:
            return False
        outcome = endpoint(data[end:], as_status)
        if isinstance(outcome, Later) or self._slots or self._node.draining:
            self._answer_in_turn(outcome, close=self._node.draining)
            if self._out:
                self._flush()
        else:
            self.transport.write(self._rendered(outcome, close=False))
        self.server_state.total_requests += 1
        self._since = self.loop.time()
        return True

    def _upgrade(self) -> None:
        """What follows is in another protocol; if we do not speak it, the application answers and that is all."""
        if not self._should_upgrade():
            self._deaf = True
            if self.cycle is not None:
                self.cycle.keep_alive = False
        elif self._slots or self._in_app:
            self._end()
        else:
            self._flush()
            self._stop_timer()
            self.handle_websocket_upgrade()

    def pause_writing(self) -> None:
        """The client does not read its answers: stop reading its requests."""
        super().pause_writing()
        self.flow.pause_reading()

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        if not self._in_app and len(self._slots) < MAX_WAITING:
            self.flow.resume_reading()

    # What the parser finds.

    def on_message_begin(self) -> None:
        """Note the least that is needed; uvicorn's scope is made only for those who need one."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._phase = HEAD
        self._timed_phase = IDLE
        self._head_size = 0
        if self._deaf:
            raise DeafError

    def on_headers_complete(self) -> None:
        """Decide which way this request takes."""
        self._phase = BODY
        parser = self.parser
        route = self._hot.get(self.url)
        if (
            route is not None
            and parser.get_method() == b"POST"
            and not self.expect_100_continue
            and not parser.should_upgrade()
            and not self._in_app
            and not self.pipeline
            and self.limit_concurrency is None
            and parser.get_http_version() == "1.1"
        ):
            self._endpoint, self._as_status = route
            self._size = 0
            self._chunks = []
            self._refusal = None
            self._read_headers()
            return
        self._endpoint = None
        self._head = b""
        if self._has_body_behind_upgrade():
            detail = "no protocol to upgrade to is offered; send the request without Upgrade"
            self._refuse(ProblemError(BAD_REQUEST, detail))
            return
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers.extend(headers)
        if self._slots and not (parser.should_upgrade() and self._should_upgrade()):
            self.cycle = BUSY  # So that it queues behind the answers that are on their way.
        super().on_headers_complete()

    def _has_body_behind_upgrade(self) -> bool:
        """Whether the parser will stop in front of a body that nobody would then read."""
        if not self.parser.should_upgrade() or self._should_upgrade():
            return False
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in self.headers
        )

    def on_body(self, body: bytes) -> None:
        """Collect the body, up to its bound."""
        if self._deaf:
            return
        if self._endpoint is None:
            super().on_body(body)
            return
        self._size += len(body)
        if self._size > self._max_body:
            self._refuse(_too_large(self._max_body))
            return
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        """Answer, or queue for the answer."""
        self._phase = IDLE
        if self._deaf:
            return
        endpoint = self._endpoint
        if endpoint is None:
            super().on_message_complete()
            return
        close = self._node.draining or not self.parser.should_keep_alive()
        if self._refusal is not None:
            self._answer(self._refusal, close)
            return
        chunks = self._chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self.server_state.total_requests += 1
        self._answer_in_turn(endpoint(body, self._as_status), close=close)

    def _answer_in_turn(self, outcome: Reply | Later, *, close: bool) -> None:
        """See that an endpoint's answer leaves when it is there, and behind those before it."""
        if not isinstance(outcome, Later):
            self._answer(outcome, close)
            return
        slot: list[Any] = [None, close]
        self._slots.append(slot)
        outcome.future.add_done_callback(lambda future: self._deliver(slot, outcome.finish(future)))
        if len(self._slots) >= MAX_WAITING:
            self.flow.pause_reading()

    def _read_headers(self) -> None:
        """What the fast path must know of the headers."""
        found = dict(self.headers)
        if found.get(AS_STATUS) == b"1":
            self._as_status = True
        media = found.get(b"content-type", b"")
        if media != b"application/json" and not is_json(media.decode("latin-1")):
            self._refusal = NO_JSON
        if found.get(b"content-encoding", b"identity").lower() != b"identity":
            self._refusal = NO_JSON
        auth = self._node.auth
        guarded = auth is not None and auth.checks_need_token
        if guarded and not auth.may_check(found.get(b"authorization")):
            self._refusal = token_needed().reply()
        length = int(found.get(b"content-length", b"-1"))
        if length > self._max_body:
            self._refuse(_too_large(self._max_body))
        elif length >= 0 and self._refusal is None and not guarded:  # A token may end any time.
            self._remember_head(length)

    def _remember_head(self, length: int) -> None:
        """Know this head again, if it is the one that the packet began with and says what it says in the usual way."""
        head, self._head = self._head, b""
        assert self._endpoint is not None
        if (
            len(head) <= MAX_REMEMBERED
            and head.startswith(b"POST /")
            and head.count(b"\n") == head.count(b"\r\n") == len(self.headers) + 2
            and self.parser.should_keep_alive()
        ):
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            self._heads[head] = (self._endpoint, self._as_status, length)

    # Answers, in order.

    def _answer(self, reply: Reply, close: bool) -> None:  # noqa: FBT001 - hot
        """Send a reply that is there, or put it into the queue behind those that are not."""
        if self._slots:
            self._slots.append([reply, close])
            return
        self._out.append(self._rendered(reply, close=close))
        if close:
            self._end()

    def _deliver(self, slot: list[Any], reply: Reply) -> None:
        """A reply has come from the store: send it, and what waited behind it."""
        slot[0] = reply
        slots = self._slots
        if not slots or slots[0] is not slot:
            return
        while slots and slots[0][0] is not None:
            ready, close = slots.popleft()
            self._out.append(self._rendered(ready, close=close or self._node.draining))
            if close or self._node.draining:
                self._end()
                return
        self._flush()
        self._since = self.loop.time()
        if slots:
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        elif not self.flow.write_paused:
            self.flow.resume_reading()

    def _rendered(self, reply: Reply, *, close: bool) -> bytes:
        status, lines, body = reply
        self._statuses[status] += 1
        common = self.server_state.default_headers
        if common is not self._common:  # uvicorn makes a new list every second, with a new date.
            self._common = common
            self._common_lines = b"".join(b"%b: %b\r\n" % pair for pair in common)
        if close:
            lines += CLOSE
        return b"%b%b%bcontent-length: %d\r\n\r\n%b" % (
            STATUS_LINE[status],
            self._common_lines,
            lines,
            len(body),
            body,
        )

    def _flush(self) -> None:
        out = self._out
        if out:
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))
            self._out = []

    def _refuse(self, problem: ProblemError) -> None:
        """Say what is wrong, behind whatever is owed before it, and close."""
        if self._in_app:
            self._end()  # The application is in the middle of its answer, and nothing can be said.
        else:
            self._deaf = True
            self._answer(problem.reply(), close=True)

    def _end(self) -> None:
        """Send what there is, say that no more will come, and wait a moment for the client to close.

        Closing at once with something unread would reset the connection, and the client might never see what we sent last.
        """
        self._deaf = True
        self._slots.clear()
        self._flush()
        transport = self.transport
        if transport.is_closing():
            return
        if not transport.can_write_eof():
            transport.close()
            return
        transport.write_eof()
        self._stop_timer()
        self._timer = self.loop.call_later(LINGER, transport.close)

    # The application's part.

    @property
    def _in_app(self) -> bool:
        """Whether a request of this connection is with the application."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete

    def on_response_complete(self) -> None:
        """The application has answered: go on with what waits, or be idle."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._since = self.loop.time()
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)

    # Time.

    @property
    def idle(self) -> bool:
        """Whether nobody waits for anything on this connection."""
        return self._phase == IDLE and not self._slots and not self._in_app

    def idle_for(self) -> float:
        """Seconds since anything happened on it; 0 as long as somebody waits for an answer."""
        return self.loop.time() - self._since if self.idle else 0.0

    def shutdown(self) -> None:
        """Close now if nobody waits for an answer; else behind the answer."""
        if self._slots:
            self._slots[-1][1] = True
        elif self._phase == IDLE or self._in_app:
            super().shutdown()
        else:
            self._end()

    def _patience(self, phase: int) -> float:
        settings = self._node.settings
        if phase == HEAD:
            return settings.header_timeout
        return settings.body_timeout if phase == BODY else settings.idle_timeout

    def _note_progress(self, size: int) -> None:
        """A request has arrived in part: its head and its body each have their time, counted from their first byte."""
        phase = self._phase
        if phase == self._timed_phase:
            self._head_size += size  # How much of the first packet was of this head is not known.
            if phase == HEAD and self._head_size > MAX_HEAD:
                detail = f"the head of a request has at most {MAX_HEAD} bytes"
                self._refuse(ProblemError(BAD_REQUEST, detail))
            return
        self._timed_phase = phase
        self._since = now = self.loop.time()
        patience = self._patience(phase)
        timer = self._timer
        if timer is None or timer.when() > now + patience:
            self._stop_timer()
            self._timer = self.loop.call_later(patience, self._on_time)

    def _on_time(self) -> None:
        """Close if the client has run out of time; else be woken when it would."""
        self._timer = None
        if self._deaf:
            return
        now = self.loop.time()
        phase = self._phase
        patience = self._patience(phase)
        if self._slots or self.flow.read_paused or (self._in_app and phase == IDLE):
            self._since = now  # It is waiting for us.
        left = self._since + patience - now
        if left > 0.001:
            self._timer = self.loop.call_later(left, self._on_time)
        elif phase == IDLE:
            self._end()
        else:
            self._refuse(ProblemError(TIMED_OUT, f"it must arrive within {patience:g} s"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def bound_to(node: Node, hot: dict[bytes, tuple[Endpoint, bool]]) -> type[HotProtocol]:
    """The protocol of one node, for uvicorn to make connections of."""
    own = {"__slots__": (), "node": node, "hot": hot, "heads": {}, "connections_from": {}}
    return type("BoundProtocol", (HotProtocol,), own)


def _too_large(limit: int) -> ProblemError:
    return ProblemError(TOO_LARGE, f"a body has at most {limit} bytes; send a batch in parts")
