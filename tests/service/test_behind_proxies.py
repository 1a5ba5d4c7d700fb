"""Behind real proxies that let only checks pass: no body becomes a request, and everybody gets their own answer.

Attackers send checks that are refused, checks in pieces and bodies that look like requests, in random order over
connections that the proxy shares with honest users. The normal run takes a few seconds for each proxy;
`HEADGATE_LONG=1`, which `make fuzz` sets, takes a minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tests.servers.fixtures import installed
from tests.servers.proxies import PROXIES
from tests.service.raw import Raw, post
from tests.service.running import Service, service

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LONG = bool(os.environ.get("HEADGATE_LONG"))
SECONDS = 60.0 if LONG else 4.0
LEAST = 500 if LONG else 50
"""How many requests of either kind there must have been, on a machine that is busy."""
ATTACKERS, HONEST = 2, 1
GOOD = b'{"key":"a"}'
BAN = (
    b"PUT /api/bans/victim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 2\r\n\r\n{}"
)


@dataclass
class Seen:
    """What came of it."""

    tries: int = 0
    answers: int = 0
    wrong: list[str] = field(default_factory=list)


def attacks(chance: random.Random) -> list[list[bytes]]:
    """A few requests, each in the pieces that it is sent in."""
    if chance.random() < 0.5:
        return [_any_request(chance) for _ in range(4)]
    # A check that is known, one that is refused, the known one in pieces, and the refused one with more behind it.
    more = chance.choice(((), ("X-A: b",)))
    known = post(GOOD, "/check", *more)
    refused = post(GOOD + BAN, "/check", *more, media=chance.choice(("text/plain", "text/json")))
    end = len(refused) - len(BAN)
    return [[known], [refused], [known[: -len(GOOD)], GOOD], [refused[:end], refused[end:]]]


def _any_request(chance: random.Random) -> list[bytes]:
    media = chance.choice(("application/json", "application/json", "text/plain", "text/json"))
    more = chance.choice(((), ("X-A: b",), ("X-Headgate-Status: 1",), ("Content-Encoding: gzip",)))
    body = chance.choice((GOOD, GOOD, GOOD + BAN, GOOD + BAN, BAN, GOOD + b"\r\n" + BAN))
    whole = post(body, "/check", *more, media=media)
    if chance.random() < 0.2:
        length = b"Content-Length: %d" % len(body)
        head = whole[: -len(body)].replace(length, b"Transfer-Encoding: chunked")
        half = chance.choice((len(GOOD), len(body)))
        parts = [part for part in (body[:half], body[half:]) if part]
        return [head, *(b"%x\r\n%b\r\n" % (len(part), part) for part in parts), b"0\r\n\r\n"]
    cut = chance.choice((len(whole), len(whole) - len(body), len(whole) - len(body) + len(GOOD)))
    return [piece for piece in (whole[:cut], whole[cut:]) if piece]


def attack(port: int, seed: int, ends: float, seen: Seen) -> None:
    chance = random.Random(seed)
    while time.monotonic() < ends:
        with contextlib.suppress(OSError), Raw(port, timeout=1.0) as raw:
            for _ in range(10):
                for pieces in attacks(chance):
                    for piece in pieces:
                        raw.send(piece)
                        # Packets of their own.
                        time.sleep(chance.choice((0.0, 0.0002, 0.0005, 0.001, 0.005)))
                    seen.tries += 1
                    raw.answer()


def ask(port: int, name: str, ends: float, seen: Seen) -> None:
    """An honest user, whose answers are about their own keys."""
    number = 0
    while time.monotonic() < ends:
        try:
            with Raw(port, timeout=5.0) as raw:
                for _ in range(50):
                    number += 1
                    key = f"{name}:{number}"
                    answer = raw.send(post({"key": key})).answer()
                    if answer.status == 200 and json.loads(answer.body).get("key") == key:
                        seen.answers += 1
                    elif answer.status < 500:  # A proxy that lost its connection says so by 5xx.
                        seen.wrong.append(f"{key}: {answer}")
        except OSError:
            continue


@pytest.mark.slow
@pytest.mark.parametrize("name", PROXIES)
def test_no_body_becomes_a_request(
    tmp_path: Path, name: str, record_property: Callable[[str, object], None]
) -> None:
    seen = Seen()
    with service() as running:
        with installed():
            proxy = PROXIES[name](tmp_path, running.port)
        with proxy:
            ends = time.monotonic() + SECONDS
            threads = [
                *(
                    threading.Thread(target=attack, args=(proxy.port, seed, ends, seen))
                    for seed in range(ATTACKERS)
                ),
                *(
                    threading.Thread(target=ask, args=(proxy.port, f"u{one}", ends, seen))
                    for one in range(HONEST)
                ),
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert seen.wrong == []
        record_property("tries", seen.tries)
        record_property("answers", seen.answers)
        assert seen.tries > LEAST
        assert seen.answers > LEAST
        assert _bans(running) == []


def _bans(running: Service) -> list[str]:
    return [one["key"] for one in running.ask("GET", "/api/bans")[2]["bans"]]
