"""Any limiter behind HTTP: recorded by asking it, and judged by what it answered. Ours, a good one and a bad one."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from headgate import FixedWindow, SlidingLog, UsageError
from headgate.cli import main
from headgate.lab.black_box import Load, Target, filled, outcome_of, record
from headgate.lab.history import load_history
from headgate.lab.scene import Scene
from headgate.lab.verdict import judge
from tests.service.running import service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

URL = "http://127.0.0.1/"


class Log:
    """A sliding log; with a lock it is exact, and without it reads, waits a little, and writes."""

    def __init__(self, limit: int, window_s: float, *, locked: bool) -> None:
        self._limit, self._window_s = limit, window_s
        self._times: list[float] = []
        self._lock: Any = threading.Lock() if locked else contextlib.nullcontext()
        self._pause_s = 0.0 if locked else 0.002

    def allows(self) -> bool:
        with self._lock:
            now = time.monotonic()
            times = [at for at in self._times if at > now - self._window_s]
            time.sleep(self._pause_s)  # That is its fault: it is slow under its lock.
            allowed = len(times) < self._limit
            self._times = [*times, now] if allowed else times
            return allowed


@contextlib.contextmanager
def behind_http(answer: Callable[[], tuple[int, bytes]]) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, content = answer()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def by_status(log: Log) -> Callable[[], tuple[int, bytes]]:
    return lambda: (200, b"") if log.allows() else (429, b"no")


@pytest.mark.parametrize("locked", [True, False])
def test_a_foreign_limiter_is_judged_by_its_answers(
    *, locked: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "history.jsonl")
    with behind_http(by_status(Log(20, 0.5, locked=locked))) as url:
        words = f"lab record {url} --method GET --rate 20/500ms --algorithm sliding_log --to {path} --fresh"
        assert main([*words.split(), "--requests", "400", "--seconds", "2", "--clients", "8"]) == 0
    picture = tmp_path / "picture.svg"
    assert main(["lab", "verify", path, "--json", "--picture", str(picture)]) == (
        0 if locked else 1
    )
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == ("holds" if locked else "violated")
    assert (found["figures"]["over_limit"] > 0) is not locked
    assert found["violations"] == ({} if locked else {"over-admission": 1})
    assert picture.read_text().startswith("<svg ")


def test_our_own_service_is_judged_by_its_answers(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with service() as running:
        target = Target(
            f"http://127.0.0.1:{running.port}/check",
            body='{"key": "{key}", "limit": 15, "window": 0.5, "algorithm": "fixed_window"}',
            allow_field="allowed",
        )
        record(str(path), target, Load(requests=600, seconds=3, clients=6, keys=2), FixedWindow(15, 500_000),
               engine="other", mode="exact", fresh=True, epsilon_us=2_000)  # fmt: skip
    history = load_history(path)
    verdict = judge(Scene(history))
    assert verdict.holds, verdict.findings
    assert verdict.figures["allowed"] >= 30
    assert verdict.figures["denied"] > 0
    assert {one.key for one in history.operations} == {"key-0", "key-1"}
    assert all(one.ver is None and one.remaining is None for one in history.operations)


@pytest.mark.parametrize(
    "field, why",
    [
        ("alowed", "0 failed, 3 unknown, the first because of: the answer has no 'alowed'"),
        ("allowed", ""),
    ],
)
def test_a_recording_without_a_usable_answer_causes_a_warning_and_is_not_judged(
    field: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "history.jsonl")
    with behind_http(lambda: (200, b'{"allowed": true}')) as url:
        words = f"lab record {url} --rate 5/s --allow-field {field} --requests 3 --to {path}"
        assert main(words.split()) == 0
    told = capsys.readouterr().err.splitlines()
    warning = (
        f"headgate: warning: no answer said allowed or denied: {why}; check the URL, --allow-field,"
    )
    assert (len(told), told[0].startswith(warning)) == ((2, True) if why else (1, False))
    assert main(["lab", "verify", path]) == (2 if why else 0)


def test_fresh_keys_are_new_in_each_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second run within the window would else be denied at once, which looks like false denials."""
    body = '{"key": "{key}", "limit": 5, "window": 3600, "algorithm": "sliding_log"}'
    claims = "--rate 5/hour --algorithm sliding_log --allow-field allowed --requests 20 --fresh"
    found = []
    with service() as running:
        url = f"http://127.0.0.1:{running.port}/check"
        for number, keys in enumerate((2, 2, 1, 1)):
            path = str(tmp_path / f"{number}.jsonl")
            words = f"lab record {url} {claims} --keys {keys} --to {path} --body".split()
            assert main([*words, body]) == 0
            assert main(["lab", "verify", path]) == 0, capsys.readouterr().out
            history = load_history(path)
            assert history.header.fresh
            found.append({one.key for one in history.operations})
    assert [len(keys) for keys in found] == [2, 2, 1, 1]
    assert len(set.union(*found)) == 6


def test_answers_that_never_come_are_unknown_and_refused_connections_are_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "history.jsonl"
    asked = 0

    def answer() -> tuple[int, bytes]:
        nonlocal asked
        asked += 1
        if asked % 5 == 0:
            time.sleep(0.4)  # A server that is slow at times.
        return (200, b"") if asked % 7 else (503, b"")

    with behind_http(answer) as url:
        record(
            str(path),
            Target(url, method="GET", timeout_s=0.1),
            Load(requests=20, clients=1),
            SlidingLog(100, 60_000_000),
            engine="other",
            mode="exact",
        )
    types = [one.type for one in load_history(path).operations]
    assert len(types) == 20
    assert types.count("info") >= 4
    assert len({one.proc for one in load_history(path).operations}) == types.count("info") + 1 - (
        types[-1] == "info"
    )
    record(str(path), Target(url, method="GET"), Load(requests=3, clients=1), SlidingLog(100, 60_000_000),
           engine="other", mode="exact")  # fmt: skip
    assert {one.type for one in load_history(path).operations} == {"fail"}


def test_a_recording_ends_in_time(tmp_path: Path) -> None:
    begun = time.monotonic()
    with behind_http(lambda: (200, b"")) as url:
        record(str(tmp_path / "h.jsonl"), Target(url, method="GET"), Load(requests=1_000_000, seconds=0.3, clients=2),
               SlidingLog(100_000, 60_000_000), engine="other", mode="exact")  # fmt: skip
    assert time.monotonic() - begun < 3


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "http://192.168.0.1/",
        "http://8.8.8.8/x",
        "https://127.0.0.1/",
        "nonsense",
        "http://[::2]/",
    ],
)
def test_only_this_machine_is_asked(url: str) -> None:
    with pytest.raises(UsageError):
        Target(url)


@pytest.mark.parametrize(
    "fields",
    [
        {"requests": 0},
        {"requests": 10**9},
        {"seconds": 1e9},
        {"clients": 0},
        {"clients": 10_000},
        {"cost": -1},
        {"pause_s": -1},
        {"seconds": float("nan")},
    ],
)
def test_a_load_has_bounds(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Load(**fields)


def test_placeholders_are_filled_in_and_other_braces_stay() -> None:
    values = {"key": "{cost}", "cost": "2", "n": "7"}
    assert (
        filled('{"k": "{key}", "c": {cost}, "n": {n}, "x": {y}}', values)
        == '{"k": "{cost}", "c": 2, "n": 7, "x": {y}}'
    )


@pytest.mark.parametrize(
    "field, status, content, outcome",
    [
        ("", 200, b"", "allow"),
        ("", 429, b"", "deny"),
        ("", 404, b"", "fail"),
        ("", 500, b"", "info"),
        ("allowed", 200, b'{"allowed": true}', "allow"),
        ("allowed", 200, b'{"allowed": false}', "deny"),
        ("allowed", 200, b"{}", "info"),
        ("allowed", 200, b"junk", "info"),
        ("allowed", 429, b"", "deny"),
        ("result.ok", 200, b'{"result": {"ok": true}}', "allow"),
        ("result.ok", 200, b'{"result": [1]}', "info"),
    ],
)
def test_an_answer_is_interpreted_by_status_and_field(
    field: str, status: int, content: bytes, outcome: str
) -> None:
    assert outcome_of(Target(URL, allow_field=field), status, content)[0] == outcome
