"""No bytes of a body are ever taken for a request, whoever sent what before, on this connection or another."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.service.raw import Raw, post
from tests.service.running import Service, service

if TYPE_CHECKING:
    from collections.abc import Iterator

BAN = (
    b"PUT /api/bans/victim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 2\r\n\r\n{}"
)
GOOD = post(b'{"key":"a"}')


@pytest.fixture
def running() -> Iterator[Service]:
    with service() as one:
        yield one


def bans(running: Service) -> list[str]:
    return [one["key"] for one in running.ask("GET", "/api/bans")[2]["bans"]]


POISONS = {
    "refused for its type": lambda body: post(body, media="text/plain"),
    "refused for its coding": lambda body: post(body, "/check", "Content-Encoding: gzip"),
    "not for the fast path": lambda body: post(body, "/check", "Expect: 100-continue"),
    "a type, and one that is not looked at": lambda body: post(body, media="text/json"),
}


@pytest.mark.parametrize("name", POISONS)
def test_what_follows_a_request_is_not_remembered_under_its_head(
    running: Service, name: str
) -> None:
    """The head of the first request must mean what it says, even when a good request came behind it in one packet."""
    body = GOOD[GOOD.index(b"\r\n\r\n") + 4 :]
    long = body + BAN
    first = POISONS[name](long)
    with Raw(running.port) as attacker:
        for _ in range(3):
            attacker.send(first + GOOD)
            time.sleep(0.05)  # A packet of its own.
    head, _, _ = first.partition(b"\r\n\r\n")
    with Raw(running.port) as behind_a_proxy:
        behind_a_proxy.send(head + b"\r\n\r\n" + body)
        time.sleep(0.05)  # A packet of its own.
        behind_a_proxy.send(long[len(body) :])
        time.sleep(0.1)  # For a ban to be carried out.
    assert bans(running) == []


def test_a_chunked_request_leaves_nothing_behind(running: Service) -> None:
    head = (
        b"POST /check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    body = b'{"key":"a"}'
    with Raw(running.port) as attacker:
        attacker.send(head + b"b\r\n" + body + b"\r\n0\r\n\r\n" + GOOD)
        assert [one.status for one in attacker.answers(2)] == [200, 200]
    with Raw(running.port) as behind_a_proxy:
        behind_a_proxy.send(head + b"b\r\n" + body[:8])
        time.sleep(0.05)  # A packet of its own.
        behind_a_proxy.send(body[8:] + b"\r\n%x\r\n" % len(BAN) + BAN + b"\r\n0\r\n\r\n")
        assert behind_a_proxy.answer().status == 400
    assert bans(running) == []
