"""A connection: responses in order, one timer, and a close that the client can detect.

Answers are sent in the order of their requests. One that must wait for a store has a slot in a queue; later ones wait
in theirs, and a request for the application that comes after them is started when the queue is empty.

Requests that arrive together are processed in small portions, one per turn of the loop, and none while the client does
not read its answers: a client that sends many at once gets no more time than the others.

Each connection has one timer, which is set again only when it fires: a request costs it nothing. It closes connections
that take too long to send a head or a body, or are idle for too long.

The parts of uvicorn's internals that this relies on are listed in decisions 0013 and 0031; the minor version is pinned,
and raw-socket tests cover all of them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Final

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from .endpoints import Later
from .gates import CLOSE
from .problems import BAD_REQUEST, TIMED_OUT, TOO_MANY, ProblemError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ..node import Node
    from .problems import Reply

IDLE, HEAD, BODY = range(3)
"""What the client is expected to send next: anything, the rest of a head, the rest of a body."""

MAX_HEAD: Final = 65_536
MAX_WAITING: Final = 64
"""Answers of one connection that may wait for the store before reading stops."""
SLICE: Final = 4_096
"""Bytes to process per turn of the loop, if there are answers to send."""
LINGER: Final = 1.0
"""Seconds that a client has to read the last response and to close."""


class Flow(FlowControl):
    """uvicorn's flow control, for a connection that may have unprocessed data before it reads on."""

    def __init__(self, transport: asyncio.Transport, read_on: Callable[[], None]) -> None:
        super().__init__(transport)
        self._read_on = read_on

    def resume_reading(self) -> None:
        """Read on."""
        if self.read_paused:
            self.read_paused = False
            self._read_on()


class HttpConnection(HttpToolsProtocol):
    """One connection, independent of the requests on it."""

    # Slots, because uvicorn's own attributes fill the thirty that CPython looks up fast in a `__dict__`.
    __slots__ = (
        "_address",
        "_common",
        "_common_lines",
        "_completed",
        "_feeding",
        "_head_size",
        "_ignores_input",
        "_node",
        "_out",
        "_phase",
        "_since",
        "_slots",
        "_statuses",
        "_stuck_since",
        "_timed_phase",
        "_timer",
        "_unfed",
    )

    node: ClassVar[Node]
    connections_from: ClassVar[dict[str, int]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._node = self.node
        self._statuses = self.node.recorder.fast_answers
        self._common: list[tuple[bytes, bytes]] | None = None
        self._common_lines = b""
        self._out: list[bytes] = []
        self._slots: deque[list[Any]] = deque()
        self._phase = IDLE
        self._timed_phase = IDLE
        self._since = self.loop.time()
        self._head_size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ignores_input = False  # Whether further input is ignored.
        self._address = ""
        self._unfed = b""  # Received but not processed yet.
        self._feeding = False  # Whether that is scheduled.
        self._completed = 0  # Requests received completely.
        self._stuck_since = 0.0  # Since when the client does not read its answers.

    # Life cycle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer, and count the connections of this address."""
        super().connection_made(transport)
        self.flow = Flow(transport, self._read_on)
        settings = self._node.settings
        self._timer = self.loop.call_later(settings.header_timeout, self._on_time)
        cap = settings.max_connections_per_ip
        if cap and self.client:
            self._address = self.client[0]
            count = self.connections_from.get(self._address, 0) + 1
            self.connections_from[self._address] = count
            if count > cap:
                detail = f"at most {cap} connections per address may be open at a time"
                self._refuse(ProblemError(TOO_MANY, detail))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        self._ignores_input = True
        self._unfed = b""
        self._slots.clear()
        self._uncount()
        super().connection_lost(exc)

    def _uncount(self) -> None:
        """Count one connection less of this address."""
        if self._address:
            count = self.connections_from.get(self._address, 1) - 1
            if count:
                self.connections_from[self._address] = count
            else:
                self.connections_from.pop(self._address, None)

    def pause_writing(self) -> None:
        """The client does not read its answers: stop reading its requests."""
        self._stuck_since = self.loop.time()
        super().pause_writing()
        self.flow.pause_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        if not self._in_app and len(self._slots) < MAX_WAITING:
            self.flow.resume_reading()

    # Input, in portions

    def _feed(self, data: bytes) -> None:
        """Process some bytes; implemented by `FastPathProtocol`."""
        raise NotImplementedError

    def _slice(self) -> int:
        """How many bytes to process next."""
        raise NotImplementedError

    def _feed_on(self) -> None:
        """Process input until there is something to answer or the client must wait; then yield to the loop."""
        self._feeding = False
        unfed, at, completed = self._unfed, 0, self._completed
        while at < len(unfed) and not self._ignores_input and not self.flow.read_paused:
            if completed != self._completed:
                self._feed_soon()
                break
            size = self._slice()
            self._feed(unfed[at : at + size])
            at += size
        self._unfed = b"" if self._ignores_input else unfed[at:]
        if self._unfed:
            self.transport.pause_reading()
        elif (self._ignores_input or not self.flow.read_paused) and not self.transport.is_closing():
            self.transport.resume_reading()

    def _feed_soon(self) -> None:
        if not self._feeding:
            self._feeding = True
            self.loop.call_soon(self._feed_on)

    def _read_on(self) -> None:
        """Reading may resume: first process what was received already."""
        if self._unfed:
            self._feed_soon()
        else:
            self.transport.resume_reading()

    # Answers, in order

    def _answer_in_turn(self, outcome: Reply | Later, *, close: bool) -> None:
        """Send an endpoint's answer when it is ready, after all earlier ones."""
        if not isinstance(outcome, Later):
            self._answer(outcome, close)
            return
        slot: list[Any] = [None, close]
        self._slots.append(slot)
        outcome.future.add_done_callback(lambda _: self._deliver(slot, outcome.finish()))
        if len(self._slots) >= MAX_WAITING:
            self.flow.pause_reading()

    def _answer(self, reply: Reply, close: bool) -> None:  # noqa: FBT001 - hot
        """Send a reply, or queue it after those that are not ready."""
        if self._slots:
            self._slots.append([reply, close])
            return
        self._out.append(self._rendered(reply, close=close))
        if close:
            self._end()

    def _deliver(self, slot: list[Any], reply: Reply) -> None:
        """A reply has come from the store: send it, and those that waited for it."""
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
        if common is not self._common:  # uvicorn creates a new list every second, with a new date.
            self._common = common
            self._common_lines = b"".join(b"%b: %b\r\n" % pair for pair in common)
        if close and CLOSE not in lines:
            lines += CLOSE
        end = b"content-length: %d\r\n\r\n" % len(body)
        return b"".join((STATUS_LINE[status], self._common_lines, lines, end, body))

    def _flush(self) -> None:
        out = self._out
        if out:
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))
            self._out = []

    def _refuse(self, problem: ProblemError) -> None:
        """Send a problem, after all pending answers, and close."""
        if self._in_app:
            self._end()  # The application is in the middle of its answer, so nothing can be sent.
        else:
            self._ignores_input = True
            self._answer(problem.reply(), close=True)

    def _refuse_head(self) -> None:
        detail = f"a request's headers may have at most {MAX_HEAD} bytes"
        self._refuse(ProblemError(BAD_REQUEST, detail))

    def _end(self) -> None:
        """Send pending data, shut down the sending side, and wait a moment for the client to close.

        Closing at once with unread input would reset the connection, and the client might never see the last response.
        """
        self._ignores_input = True
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

    # The application

    @property
    def _in_app(self) -> bool:
        """Whether the application is handling a request of this connection."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete

    def on_response_complete(self) -> None:
        """The application has answered: continue with what waits, or be idle."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._since = self.loop.time()
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)

    # Timeouts

    @property
    def idle(self) -> bool:
        """Whether no response is pending on this connection."""
        return not (self._phase or self._slots or self._unfed or self._in_app)

    def idle_for(self) -> float:
        """Seconds since the last activity; 0 while a response is pending."""
        return self.loop.time() - self._since if self.idle else 0.0

    def shutdown(self) -> None:
        """Close now if no response is pending; else after the response."""
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
        """Input has arrived: head and body each have a time limit, counted from their first byte."""
        phase = self._phase
        if phase == self._timed_phase:
            # How much of the first portion belongs to this head is not known.
            self._head_size += size
            if phase == HEAD and self._head_size > MAX_HEAD:
                self._refuse_head()
            return
        self._timed_phase = phase
        self._since = now = self.loop.time()
        patience = self._patience(phase)
        timer = self._timer
        if timer is None or timer.when() > now + patience:
            self._stop_timer()
            self._timer = self.loop.call_later(patience, self._on_time)

    def _on_time(self) -> None:
        """Close if the client has run out of time; else set the timer again."""
        self._timer = None
        if self._ignores_input:
            return
        now = self.loop.time()
        phase = self._phase
        patience = self._patience(phase)
        if self.flow.write_paused:
            if now - self._stuck_since >= self._node.settings.idle_timeout:
                self._ignores_input = True
                self.transport.abort()
                return
            self._since = now
        elif (
            self._slots or self._unfed or self.flow.read_paused or (self._in_app and phase == IDLE)
        ):
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
