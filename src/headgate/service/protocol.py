"""The hot path: checks answered inside uvicorn's HTTP protocol, before any framework is asked.

The subclass takes only the plain case: an HTTP/1.1 `POST` to one of the fast paths, without `Expect` or `Upgrade`, while no request of
the same connection is with the application. Everything else takes uvicorn's own way to the ASGI route of the same path, which shares
decoder, endpoints and texts; so leaving the fast path never changes an answer.

A head that has been parsed needs no parsing: clients send the same one again and again. What a plain head meant is remembered by its bytes,
and a packet that is such a head with its whole body behind it goes to its endpoint at once.

What is relied on of uvicorn's internals is listed in decision 0013; the minor version is pinned, and raw-socket tests hold every part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import httptools

from .connection import BODY, HEAD, IDLE, Connection
from .endpoints import Later
from .media import WANTS_JSON, is_json
from .problems import BAD_REQUEST, NOT_JSON, TOO_LARGE, ProblemError, token_needed

if TYPE_CHECKING:
    from .endpoints import Endpoint
    from .node import Node
    from .problems import Reply

Route: TypeAlias = "tuple[Endpoint, bool, int]"
"""An endpoint, whether a denial is told as a status, and how many bytes a body may have."""

Head: TypeAlias = "tuple[Endpoint, bool, int]"
"""What a head asked for: the endpoint, whether a denial is told as a status, the length of the body."""

MAX_HEADS: Final = 1_024
MAX_REMEMBERED: Final = 2_048
"""How many heads are remembered, and how many bytes each may have."""
AS_STATUS: Final = b"x-headgate-status"
NO_JSON: Final = ProblemError(NOT_JSON, WANTS_JSON).reply()


class DeafError(Exception):
    """Stops the parser: the connection is about to be closed."""


class _Busy:
    """Stands where uvicorn looks for the request before, to say that it is not answered yet."""

    response_complete = False


BUSY: Final[Any] = _Busy()


class HotProtocol(Connection):
    """What is asked over one connection. `bound_to` makes the class that uvicorn is given."""

    __slots__ = (
        "_as_status",
        "_chunks",
        "_endpoint",
        "_head",
        "_heads",
        "_hot",
        "_max_body",
        "_refusal",
        "_size",
    )

    hot: ClassVar[dict[bytes, Route]]
    """Endpoints by what the request line says."""
    heads: ClassVar[dict[bytes, Head]]
    """Heads of plain requests that were parsed before."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._hot = self.hot
        self._heads = self.heads
        self._max_body = 0  # Of the request that is being read.
        self._endpoint: Endpoint | None = None
        self._as_status = False
        self._refusal: Reply | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._head = b""  # Of the request in this packet, if that may be worth remembering.

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
        ambiguous = ambiguity(self.headers, parser.get_http_version())
        if ambiguous is not None:
            self._head = b""
            self._refuse(ProblemError(BAD_REQUEST, ambiguous))
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


def ambiguity(headers: list[tuple[bytes, bytes]], version: str) -> str | None:
    """Why somebody in front of us could take this head for another request than we do; `None` if nobody could."""
    hosts, codings = 0, []
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding":
            codings.append(value.lower())
    if hosts != 1 and (hosts or version == "1.1"):
        return "a request names its Host, and only once; the connection is closed"
    if codings and codings != [b"chunked"]:
        return "the only Transfer-Encoding here is 'chunked'; the connection is closed"
    return None


def bound_to(node: Node, hot: dict[bytes, Route]) -> type[HotProtocol]:
    """The protocol of one node, for uvicorn to make connections of."""
    own = {"__slots__": (), "node": node, "hot": hot, "heads": {}, "connections_from": {}}
    return type("BoundProtocol", (HotProtocol,), own)


def _too_large(limit: int) -> ProblemError:
    return ProblemError(TOO_LARGE, f"a body has at most {limit} bytes; send a batch in parts")
