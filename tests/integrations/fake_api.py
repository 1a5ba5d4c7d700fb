"""An outside API on this machine that counts by itself, and answers 429 when its limit is exceeded."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class FakeApi:
    """`limit` requests in any `window_s`, by its own clock; headers of an answer can be set."""

    def __init__(self, limit: int = 10**9, window_s: float = 1.0) -> None:
        self.limit, self.window_s = limit, window_s
        self.port = 0
        self.seen: list[float] = []
        self.refused = 0
        self.answers: deque[tuple[int, dict[str, str]]] = deque()
        """What to answer next, whatever the count."""
        self.together: threading.Barrier | None = None
        """Answers are given only once so many requests are here."""
        self._recent: deque[float] = deque()
        self._lock = threading.Lock()

    def answer(self) -> tuple[int, dict[str, str]]:
        """Count one request."""
        if self.together is not None:
            self.together.wait(30)
        with self._lock:
            now = time.monotonic()
            self.seen.append(now)
            if self.answers:
                return self.answers.popleft()
            while self._recent and self._recent[0] <= now - self.window_s:
                self._recent.popleft()
            if len(self._recent) >= self.limit:
                self.refused += 1
                return 429, {"Retry-After": "1"}
            self._recent.append(now)
            return 200, {}

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}/"


@contextlib.contextmanager
def fake_api(limit: int = 10**9, window_s: float = 1.0) -> Iterator[FakeApi]:
    """Serve one while the block runs."""
    api = FakeApi(limit, window_s)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers = api.answer()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": "2"}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"ok")

        do_POST = do_GET  # noqa: N815 - named by the base class

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        api.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield api
        finally:
            server.shutdown()
            thread.join()
