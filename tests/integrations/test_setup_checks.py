"""Mistakes in how a limiter is set up are told once, with a code."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from headgate import AsyncLimiter, Limiter
from headgate._openings import MANY
from headgate.integrations import _setup_checks
from headgate.integrations._shared import Clients
from headgate.integrations.asgi import RateLimitMiddleware
from headgate.integrations.wsgi import WSGIRateLimitMiddleware
from tests.integrations.serving import UVICORN, ask, serving
from tests.servers.fixtures import on_flavours
from tests.servers.process import HOST
from tests.servers.redis import RedisServer  # noqa: TC001 - a fixture's type


async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.WARNING, "headgate")
    return lambda: [
        code
        for record in caplog.records
        for code in re.findall(r"headgate\.(W\d+)", record.message)
    ]


def test_an_untrusted_proxy_is_warned_about_once(told: Any) -> None:
    limited = RateLimitMiddleware(app, rate="100/minute")
    ask(limited, "/", "/", client="10.0.0.7", headers={"x-forwarded-for": "198.51.100.1"})
    assert told() == ["W002"]


def test_a_direct_client_that_sends_a_forwarded_address_causes_its_own_warning(told: Any) -> None:
    limited = RateLimitMiddleware(app, rate="100/minute")
    ask(limited, "/", client="8.8.8.8", headers={"x-forwarded-for": "198.51.100.1"})
    assert told() == ["W003"]


def test_a_correct_setup_causes_no_warning(told: Any) -> None:
    limited = RateLimitMiddleware(app, rate="100/minute", trusted_proxies=["10.0.0.0/8"])
    ask(limited, "/", client="10.0.0.7", headers={"x-forwarded-for": "198.51.100.1"})
    ask(RateLimitMiddleware(app, rate="100/minute"), "/", client="8.8.8.8")
    assert told() == []


def test_only_the_first_requests_are_looked_at(told: Any) -> None:
    clients = Clients()
    for _ in range(_setup_checks.LOOKS):
        assert clients.reads_headers
        clients.key("10.0.0.7")
    assert not clients.reads_headers
    assert clients.key("10.0.0.7", ["198.51.100.1"]) == "ip:10.0.0.7"
    assert told() == []


def test_a_duplicate_middleware_causes_a_warning(told: Any) -> None:
    inside = RateLimitMiddleware(app, rate="100/minute")
    RateLimitMiddleware(inside, rate="10/second")
    assert told() == []
    RateLimitMiddleware(inside, rate="100/minute")
    assert told() == ["W005"]
    WSGIRateLimitMiddleware(WSGIRateLimitMiddleware(lambda *_: [], rate="1/hour"), rate="1/hour")
    assert told() == ["W005", "W005"]


def test_a_limiter_created_per_request_causes_a_warning(told: Any) -> None:
    for _ in range(MANY - 1):
        Limiter()
    Limiter()  # Another line.
    assert told() == []
    for _ in range(MANY + 1):
        AsyncLimiter()
    assert told() == ["W004"]


def test_several_workers_are_known_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, told: Any
) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "1")
    assert not _setup_checks.several_workers()
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    ask(RateLimitMiddleware(app, rate="100/minute"), "/", "/")
    assert told() == ["W001"]


APP = """
import logging
import os
from headgate.integrations.wsgi import WSGIRateLimitMiddleware
from headgate.integrations.asgi import RateLimitMiddleware

logging.basicConfig(filename="log.txt")

def hello(environ, start_response):
    start_response("200 OK", [])
    return [open("log.txt", "rb").read()]

async def hello_async(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": open("log.txt", "rb").read()})

engine = os.environ.get("REDIS_URL")
wsgi = WSGIRateLimitMiddleware(hello, rate="1000/minute", limiter=engine)
app = RateLimitMiddleware(hello_async, rate="1000/minute", limiter=engine)
"""
GUNICORN = ("gunicorn", "main:wsgi", "--bind", f"{HOST}:{{port}}", "--workers", "2")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="workers are found in /proc")
@pytest.mark.parametrize(
    "command", [GUNICORN, (*UVICORN, "--workers", "2")], ids=lambda one: one[0]
)
@on_flavours("redis_server", "valkey-9")
def test_workers_of_real_servers_with_separate_counts_cause_a_warning(
    command: tuple[str, ...], redis_server: RedisServer
) -> None:
    """Two workers have to start."""
    for shared, found in ((None, True), (redis_server.url, False)):
        environment = {} if shared is None else {"REDIS_URL": shared}
        with serving(APP, *command, environment=environment) as running:
            texts = [running.get("/").text for _ in range(2 * _setup_checks.LOOKS + 2)]
        assert any("headgate.W001" in text for text in texts) is found
