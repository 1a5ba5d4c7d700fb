"""The hot path: checks answered inside uvicorn's HTTP protocol, without the framework.

The subclass handles only the plain case: an HTTP/1.1 `POST` to one of the fast paths, without `Expect` or `Upgrade`,
while the application handles no request of the same connection. Everything else goes through uvicorn to the ASGI route
of the same path, which shares decoder, endpoints and texts; so leaving the fast path never changes an answer.

A packet that is a plain head (see `plain_heads`) followed by its whole body needs no parser and goes to its endpoint at
once.

The parts of uvicorn's internals that this relies on are listed in decisions 0013 and 0031; the minor version is pinned,
and raw-socket tests cover all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import httptools

from .connection import BODY, HEAD, IDLE, MAX_HEAD, SLICE, HttpConnection
from .endpoints import Later
from .gates import require_checker, require_json, too_large
from .plain_heads import AS_STATUS, Heads
from .problems import BAD_REQUEST, ProblemError
from .websocket import CountedWebSocket

if TYPE_CHECKING:
    from ..node import Node
    from .endpoints import Endpoint
    from .plain_heads import Route
    from .problems import Reply

VERSIONS: Final = ("1.1", "1.0")


class InputClosedError(Exception):
    """Stops the parser: the connection is about to be closed."""


class _Busy:
    """Replaces uvicorn's current request cycle, to signal that an earlier request is not answered yet."""

    response_complete = False


BUSY: Final[Any] = _Busy()


class FastPathProtocol(HttpConnection):
    """The requests on one connection. `bound_to` creates the class for uvicorn."""

    __slots__ = (
        "_as_status",
        "_chunks",
        "_endpoint",
        "_heads",
        "_hot",
        "_length",
        "_max_body",
        "_refusal",
        "_size",
    )

    hot: ClassVar[dict[bytes, Route]]
    """Endpoints by the content of the request line."""
    heads: ClassVar[Heads]
    """The cache of plain heads; empty if checks need a token, which may expire at any time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._hot = self.hot
        self._heads = self.heads
        self._max_body = 0  # Of the current request.
        self._endpoint: Endpoint | None = None
        self._as_status = False
        self._refusal: Reply | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._length = 0  # From the head; -1 if it has none.

    def data_received(self, data: bytes) -> None:
        """Process input: at once if it is a plain request, else with the parser."""
        if self._ignores_input:
            return
        if self._unfed:
            self._unfed += data
        elif self._phase == IDLE and self._take_plain(data):
            return
        elif len(data) <= SLICE:
            self._feed(data)
        else:
            self._unfed = data
            self._feed_on()

    def _take_plain(self, data: bytes) -> bool:
        """Answer a packet that is a plain head with its whole body; false for anything else."""
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            return False
        plain = self._heads[data[:end]]
        if plain is None:
            return False
        endpoint, as_status, length = plain
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

    def _feed(self, data: bytes) -> None:
        """Feed the parser; answers that are ready are sent in one write."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._upgrade()
            return
        except httptools.HttpParserError:
            if not self._ignores_input:
                detail = "this is not a valid HTTP/1.1 request; the connection is closed"
                self._refuse(ProblemError(BAD_REQUEST, detail))
            return
        if self._out:
            self._flush()
        if self._phase == IDLE:
            self._since = self.loop.time()
        elif not self._ignores_input:
            self._note_progress(len(data))

    def _slice(self) -> int:
        """How many bytes to feed the parser next: few, if they may contain several requests."""
        if self._phase != BODY or self._endpoint is None:
            return SLICE
        return max(SLICE, self._length - self._size)

    def _upgrade(self) -> None:
        """Switch to another protocol; if it is not supported, the application answers, and nothing more is read."""
        if not self._should_upgrade():
            self._ignores_input = True
            if self.cycle is not None:
                self.cycle.keep_alive = False
        elif self._slots or self._in_app:
            self._end()
        else:
            self._flush()
            self._stop_timer()
            self.handle_websocket_upgrade()
            socket = self.transport.get_protocol()
            assert isinstance(socket, CountedWebSocket)
            socket.on_end = self._uncount
            self._ignores_input = True  # The rest is for the other protocol.

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        """Initialise as little as possible; uvicorn's scope is created only for requests that need it."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._phase = HEAD
        self._timed_phase = IDLE
        self._head_size = 0
        if self._ignores_input:
            raise InputClosedError

    def on_headers_complete(self) -> None:
        """Decide how to handle this request."""
        self._phase = BODY
        parser = self.parser
        ambiguous = ambiguity(self.url, self.headers, parser.get_http_version())
        if ambiguous is not None:
            self._refuse(ProblemError(BAD_REQUEST, ambiguous))
            return
        if self._head_size > MAX_HEAD - 2 * SLICE and self._head_bytes() > MAX_HEAD:
            self._refuse_head()
            return
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
            self._endpoint, self._as_status, self._max_body = route
            self._size = 0
            self._chunks = []
            self._refusal = None
            self._read_headers()
            return
        self._endpoint = None
        if self._has_body_behind_upgrade():
            detail = "upgrades are not supported; send the request without Upgrade"
            self._refuse(ProblemError(BAD_REQUEST, detail))
            return
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers.extend(headers)
        if self._slots and not (parser.should_upgrade() and self._should_upgrade()):
            self.cycle = BUSY  # So that it queues after pending answers.
        super().on_headers_complete()

    def _head_bytes(self) -> int:
        """The length of a complete head."""
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _has_body_behind_upgrade(self) -> bool:
        """Whether the parser will stop before a body that would then not be read."""
        if not self.parser.should_upgrade() or self._should_upgrade():
            return False
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in self.headers
        )

    def on_body(self, body: bytes) -> None:
        """Collect the body, up to its maximum size."""
        if self._ignores_input:
            return
        if self._endpoint is None:
            super().on_body(body)
            return
        self._size += len(body)
        if self._size > self._max_body:
            self._refuse(too_large(self._max_body))
            return
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        """Answer, or queue for the answer."""
        self._phase = IDLE
        self._completed += 1
        if self._ignores_input:
            return
        endpoint = self._endpoint
        if endpoint is None:
            super().on_message_complete()
            if self.cycle is not None:  # Otherwise it becomes a WebSocket.
                self._ignores_input = (
                    not self.cycle.keep_alive
                )  # Nothing after the last request is parsed.
            return
        close = self._node.draining or not self.parser.should_keep_alive()
        if self._refusal is not None:
            self._answer(self._refusal, close)
            return
        chunks = self._chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self.server_state.total_requests += 1
        self._answer_in_turn(endpoint(body, self._as_status), close=close)

    def _read_headers(self) -> None:
        """Extract what the fast path needs from the headers."""
        found = dict(self.headers)
        if found.get(AS_STATUS) == b"1":
            self._as_status = True
        self._length = int(found.get(b"content-length", b"-1"))
        try:
            require_checker(self._node.auth, self.headers)
            require_json(found, self._max_body)
        except ProblemError as problem:
            if self._length > self._max_body:
                self._refuse(problem)
            else:
                self._refusal = problem.reply()


def ambiguity(url: bytes, headers: list[tuple[bytes, bytes]], version: str) -> str | None:
    """Why a proxy in front could parse these headers as another request; `None` if it could not."""
    hosts, shown, codings = 0, 0, []
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"authorization":
            shown += 1
        elif name == b"transfer-encoding":
            codings.append(value.lower())
    if version not in VERSIONS:
        return "this is neither HTTP/1.1 nor HTTP/1.0; the connection is closed"
    if b"#" in url:
        return "a request's address may not have a '#'; the connection is closed"
    if hosts != 1 and (hosts or version == "1.1"):
        return "a request must have exactly one Host header; the connection is closed"
    if shown > 1:
        return "a request may have only one Authorization header; the connection is closed"
    if codings and (codings != [b"chunked"] or version != "1.1"):
        return "the only supported Transfer-Encoding is 'chunked', with HTTP/1.1; the connection is closed"
    return None


def bound_to(node: Node, hot: dict[bytes, Route]) -> type[FastPathProtocol]:
    """The protocol class of one node, for uvicorn."""
    guarded = node.auth.checks_need_token
    own = {
        "__slots__": (),
        "node": node,
        "hot": hot,
        "heads": Heads({} if guarded else hot),
        "connections_from": {},
    }
    return type("BoundProtocol", (FastPathProtocol,), own)
