"""Rates of Celery tasks, over real workers on a real broker."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import Celery

from headgate import Limiter, UsageError
from headgate.integrations.celery import RateLimitedTask, limiter_of
from headgate.testing import ManualClock
from tests.servers.fixtures import on_flavours
from tests.servers.process import Server, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.redis import RedisServer

pytestmark = pytest.mark.heavy


def app_with(engine: Any = None) -> Celery:
    app = Celery("app", set_as_current=False)
    app.conf.task_always_eager = True
    app.conf.headgate_engine = (
        Limiter(clock=ManualClock(1_800_000_000)) if engine is None else engine
    )
    return app


def test_a_task_that_is_called_here_waits_for_its_turn() -> None:
    clock = ManualClock(1_800_000_000)
    app = app_with(Limiter(clock=clock))

    @app.task(base=RateLimitedTask, rate="2/second")
    def hello(name: str) -> str:
        return f"hello {name}"

    began = clock.now_us()
    assert [hello("a"), hello.delay("b").get(), hello("c")] == ["hello a", "hello b", "hello c"]
    assert clock.now_us() - began >= 1_000_000


def test_each_key_has_a_rate_of_its_own() -> None:
    clock = ManualClock(1_800_000_000)
    app = app_with(Limiter(clock=clock))

    @app.task(base=RateLimitedTask, rate="1/minute", rate_key=lambda user, **_: user)
    def send(user: str, text: str = "") -> str:
        return f"{user}{text}"

    began = clock.now_us()
    assert [send("a"), send("b", text="!"), send("c")] == ["a", "b!", "c"]
    assert clock.now_us() == began
    send("a")
    assert clock.now_us() - began >= 60_000_000


def test_a_base_class_can_have_the_key_of_its_tasks() -> None:
    clock = ManualClock(1_800_000_000)
    app = app_with(Limiter(clock=clock))

    class MailTask(RateLimitedTask):
        abstract = True
        rate = "1/minute"
        rate_key = staticmethod(lambda user: user)

    @app.task(base=MailTask)
    def send(user: str) -> str:
        return user

    began = clock.now_us()
    assert [send("a"), send("b"), send("c")] == ["a", "b", "c"]
    assert clock.now_us() == began


def work() -> None:
    """Nothing."""


def test_mistakes_raise_when_the_task_is_created() -> None:
    app = app_with()
    with pytest.raises(UsageError, match="no rate"):
        app.task(base=RateLimitedTask, lazy=False)(work)
    with pytest.raises(UsageError, match="many"):
        app.task(base=RateLimitedTask, rate="many", name="many", lazy=False)(work)


def test_an_engine_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADGATE_ENGINE", raising=False)
    app = Celery("app", set_as_current=False)
    with pytest.raises(UsageError, match="headgate_engine"):
        limiter_of(app)
    monkeypatch.setenv("HEADGATE_ENGINE", "memory://")
    assert limiter_of(app) is limiter_of(app)


APP = """
import os
import time
import redis
from celery import Celery
from headgate.integrations.celery import RateLimitedTask

url = os.environ["REDIS_URL"]
app = Celery("main", broker=url)
app.conf.update(headgate_engine=url, worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True)

@app.task(name="work", base=RateLimitedTask, rate="5/second", max_retries=0)
def work(number):
    redis.Redis.from_url(url).rpush("done", f"{time.time()} {number} {os.getpid()}")

@app.task(name="ready")
def ready():
    redis.Redis.from_url(url).rpush("ready", os.getpid())
"""


@contextlib.contextmanager
def worker(folder: Path, url: str, name: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "celery", "-A", "main", "worker", "--concurrency", "2"]
    command += ["--hostname", name, "--without-gossip", "--without-mingle", "--loglevel", "warning"]
    running = Server(
        command,
        folder=folder,
        ready=lambda: True,
        environment={"REDIS_URL": url, "PYTHONPATH": str(folder)},
        start_within_s=60.0,
    )
    with running:
        yield running


@pytest.mark.slow
@on_flavours("redis_server", "redis-7.0")
def test_workers_keep_to_one_rate_and_lose_no_task(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """Two workers of two processes have to start, and 20 tasks at 5 a second take four seconds."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "main.py").write_text(APP)
    app = Celery("main", broker=redis_server.url, set_as_current=False)
    client = redis.Redis.from_url(redis_server.url, decode_responses=True)
    with (
        worker(tmp_path / "one", redis_server.url, "one@here"),
        worker(tmp_path / "two", redis_server.url, "two@here"),
    ):
        for number in range(20):
            app.send_task("work", (number,))
        wait_until(lambda: client.llen("done") >= 20, "all tasks have run", within_s=90.0)
        done: Any = client.lrange("done", 0, -1)
    client.close()
    runs = [line.split() for line in done]
    assert sorted(int(number) for _, number, _ in runs) == list(range(20))  # Each once.
    times = sorted(float(at) for at, _, _ in runs)
    assert times[-1] - times[0] > 2.0
    # The rate is exact where it is decided; a busy machine may delay what a task writes.
    assert all(later - at > 0.2 for at, later in zip(times, times[10:], strict=False))
