"""Outside APIs on this machine: each counts by itself, in windows of its own, and answers 429 when asked too often."""

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeApi:
    """At most `limit` units in any `seconds`."""

    def __init__(self, limit: int, seconds: float) -> None:
        self.limit, self.seconds = limit, seconds
        self.url = ""
        self.calls = self.refused = 0
        self._recent: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()

    def admits(self, cost: int) -> bool:
        """Count one call."""
        with self._lock:
            now = time.monotonic()
            while self._recent and self._recent[0][0] <= now - self.seconds:
                self._recent.popleft()
            self.calls += 1
            if sum(used for _, used in self._recent) + cost > self.limit:
                self.refused += 1
                return False
            self._recent.append((now, cost))
            return True


@contextlib.contextmanager
def serving(api: FakeApi) -> Iterator[FakeApi]:
    """Serve an API while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(1)

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(asked["tokens"])

        def _answer(self, cost: int) -> None:
            admitted = api.admits(cost)
            body = json.dumps({"used": cost}).encode()
            self.send_response(200 if admitted else 429)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        api.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield api
        finally:
            server.shutdown()
            thread.join()
