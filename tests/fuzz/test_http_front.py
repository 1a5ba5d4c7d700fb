"""A short part of the fuzzing of the HTTP front, always with the same seeds; and packets that it cannot make."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.fuzz.http_front import PROBE, Front, misread, run
from tests.fuzz.strict_http import Asked, read_stream

CHECK = b'POST /check HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"key":"a"}'


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_misread(seed: int) -> None:
    run(3_000, seed)


def play(*packets: bytes) -> tuple[list[Asked], bool]:
    async def story() -> tuple[list[Asked], bool]:
        return await Front().play(list(packets), random.Random(1))

    return asyncio.run(story())


@pytest.mark.parametrize("size", [70_000, 200_000, 1_000_000])
def test_a_head_that_is_too_long_is_refused_in_one_packet_too(size: int) -> None:
    long = b"POST /reserve HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * size + b"\r\n\r\n"
    many = b"POST /reserve HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * (size // 6) + b"\r\n"
    for head in (long, many):
        assert play(head) == ([], True)
        done, ended = play(CHECK + head)
        assert (len(done), ended) == (1, True)


def test_a_head_that_is_not_too_long_is_taken() -> None:
    head = b"PUT /a HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 60_000 + b"\r\n\r\n"
    done, ended = play(head, CHECK)
    assert [(one.method, one.target) for one in done] == [(b"PUT", b"/a"), (b"POST", b"/check")]
    assert not ended


def test_a_long_body_and_the_next_request_are_separated_within_one_packet() -> None:
    body = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 60
    head = b"POST /check HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    one = head % len(body) + body
    done, _ = play((one + CHECK) * 200)
    assert len(done) == 400
    assert {asked.body for asked in done} == {body, b'{"key":"a"}'}


def test_many_requests_in_one_packet_wait_for_a_client_that_does_not_read() -> None:
    async def story() -> list[int]:
        front = Front()
        protocol, wire = front.connected()
        protocol.data_received(CHECK * 1_000)
        counts = [len(front.done)]
        for _ in range(3):
            await asyncio.sleep(0)
            counts.append(len(front.done))
        protocol.pause_writing()
        for _ in range(10):
            await asyncio.sleep(0)
        counts.append(len(front.done))
        assert wire.paused
        protocol.resume_writing()
        await front.quiet(wire, protocol, wait=True)
        counts.append(len(front.done))
        return counts

    first, second, third, fourth, waiting, end = asyncio.run(story())
    assert 0 < first < second < third < fourth <= 200
    assert waiting == fourth
    assert end == 1_000


@pytest.mark.parametrize(
    "lines",
    [
        b"Authorization: Bearer a\r\nAuthorization: Bearer a\r\n",
        b"Host: y\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Length: 11\r\n",
        b"Content-Length: 12\r\n",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(lines: bytes) -> None:
    assert play(CHECK.replace(b"Host: x\r\n", b"Host: x\r\n" + lines)) == ([], True)


def test_nothing_behind_the_last_request_is_carried_out() -> None:
    last = b"PUT /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    done, ended = play(last + last)
    assert (len(done), ended) == (1, True)


NO_VERSION = b"PUT /api/bans/victim\r\n"


def test_a_first_line_without_a_version_is_refused_when_its_head_ends() -> None:
    done, ended = play(CHECK + NO_VERSION)
    assert (len(done), ended) == (1, False)
    done, ended = play(CHECK + NO_VERSION, PROBE)
    assert (len(done), ended) == (1, True)


def test_who_goes_on_behind_something_doubtful_is_found() -> None:
    class Careless(Front):
        async def play(
            self, packets: list[bytes], chance: random.Random
        ) -> tuple[list[Asked], bool]:
            done, _ = await super().play([one for one in packets if one != NO_VERSION], chance)
            return done, False

    async def judged(front: type[Front]) -> str | None:
        return await misread(front(), [CHECK, NO_VERSION], random.Random(1))

    assert asyncio.run(judged(Front)) is None
    assert "which nobody sent" in str(asyncio.run(judged(Careless)))


def test_the_strict_reader_is_strict() -> None:
    assert len(read_stream(CHECK * 3).requests) == 3
    assert read_stream(CHECK.replace(b"\r\n", b"\n")) == ([], True)
    assert read_stream(CHECK[:-1]) == ([], False)
    assert read_stream(CHECK.replace(b"Host: x", b"Host : x")).doubtful
