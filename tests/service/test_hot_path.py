"""The hot path over raw sockets: whatever a client does with its bytes, answers are right and in order."""

from __future__ import annotations

import json
import socket
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.service.raw import Raw, chunked, post
from tests.service.running import Service, service

if TYPE_CHECKING:
    from collections.abc import Iterator

GET = b"GET /page.css HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    with service() as one:
        yield one


@pytest.fixture
def raw(running: Service) -> Iterator[Raw]:
    with Raw(running.port) as one:
        yield one


@pytest.fixture
def key() -> str:
    return f"key:{uuid.uuid4()}"


def test_a_check_is_answered_with_every_header(raw: Raw, key: str) -> None:
    answer = raw.send(post({"key": key, "limit": 5, "window": 60, "cost": 2})).answer()
    assert answer.status == 200
    assert {name: answer.json[name] for name in ("key", "allowed", "limit", "remaining")} == {
        "key": key,
        "allowed": True,
        "limit": 5,
        "remaining": 3,
    }
    assert answer.headers["ratelimit-policy"] == '"default";q=5;w=60'
    assert answer.headers["ratelimit"].startswith('"default";r=3;t=')
    assert (answer.headers["x-ratelimit-limit"], answer.headers["x-ratelimit-remaining"]) == (
        "5",
        "3",
    )
    assert int(answer.headers["x-ratelimit-reset"]) > 1_700_000_000
    took = answer.headers["x-process-time"]
    assert took.endswith("s")
    assert 0 < float(took[:-1]) < 1
    assert "retry-after" not in answer.headers
    assert "date" in answer.headers


def test_pipelined_checks_are_answered_in_order(raw: Raw, key: str) -> None:
    raw.send(b"".join(post({"key": key, "limit": 50}) for _ in range(60)))
    answers = raw.answers(60)
    assert [one.json["remaining"] for one in answers] == [*range(49, -1, -1), *[0] * 10]
    assert [one.json["allowed"] for one in answers] == [True] * 50 + [False] * 10


def test_checks_and_other_requests_may_be_mixed_in_one_packet(raw: Raw, key: str) -> None:
    check = post({"key": key})
    raw.send(check + GET + check + check + b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n" + check)
    answers = raw.answers(6)
    assert [one.status for one in answers] == [200, 200, 200, 200, 404, 200]
    assert [answers[at].json["remaining"] for at in (0, 2, 3, 5)] == [99, 98, 97, 96]
    assert answers[1].headers["content-type"].startswith("text/css")


def test_one_byte_per_packet_is_as_good_as_one_packet(raw: Raw, key: str) -> None:
    for byte in post({"key": key}):
        raw.send(bytes([byte]))
    assert raw.answer().json["remaining"] == 99
    assert raw.send(post({"key": key})).answer().json["remaining"] == 98


def test_a_known_head_with_its_body_in_another_packet(raw: Raw, key: str) -> None:
    whole = post({"key": key})
    head, _, body = whole.partition(b"\r\n\r\n")
    assert [raw.send(whole).answer().json["remaining"] for _ in range(2)] == [99, 98]
    raw.send(head + b"\r\n\r\n").send(body[:5]).send(body[5:])
    assert raw.answer().json["remaining"] == 97
    raw.send(whole + whole[:30]).send(whole[30:])
    assert [one.json["remaining"] for one in raw.answers(2)] == [96, 95]


def test_a_chunked_body(raw: Raw, key: str) -> None:
    raw.send(chunked(json.dumps({"key": key}).encode()))
    assert raw.answer().json["remaining"] == 99


def test_expect_100_continue(raw: Raw, key: str) -> None:
    head, _, body = post({"key": key}, "/check", "Expect: 100-continue").partition(b"\r\n\r\n")
    assert raw.send(head + b"\r\n\r\n").answer().status == 100
    assert raw.send(body).answer().json["remaining"] == 99


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(raw: Raw) -> None:
    raw.send(
        b"POST /check HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 65537\r\n\r\n"
    )
    answer = raw.answer()
    assert (answer.status, answer.json["code"]) == (413, "too-large")
    assert answer.headers["connection"] == "close"
    assert raw.is_closed()


@pytest.mark.parametrize("path", ["/check", "/check?status=0", "/settle"])
def test_a_chunked_body_that_never_ends_is_refused_when_it_is_too_large(
    raw: Raw, path: str
) -> None:
    endless = chunked(b'{"key":"' + b"x" * 80_000, path, 1_000)[:-5]
    assert raw.send(endless).answer().status == 413
    assert raw.is_closed()


def test_bad_json_and_then_good_on_one_connection(raw: Raw, key: str) -> None:
    bad = raw.send(post(b'{"key": ')).answer()
    assert (bad.status, bad.json["code"]) == (400, "bad-json")
    assert bad.headers["content-type"] == "application/problem+json"
    assert raw.send(post({"key": key})).answer().json["remaining"] == 99


def test_connection_close_is_honoured(raw: Raw, key: str) -> None:
    answer = raw.send(post({"key": key}, "/check", "Connection: close")).answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert raw.is_closed()


def test_http_1_0_is_answered_and_closed(raw: Raw, key: str) -> None:
    answer = raw.send(post({"key": key}, version="1.0")).answer()
    assert (answer.status, answer.json["remaining"]) == (200, 99)
    assert raw.is_closed()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /check HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"POST /check HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /check HTTP/1.1\nHost: x\nContent-Length: 2\n\n{}",
        b"POST /check HTTP/1.1\r\nHost: x\r\nX-Folded: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /check HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n{}",
        b"POST /check HTTP/1.1\r\nHost: x\r\nContent-Length: 1_0\r\n\r\n{}",
        b"POST /check HTTP/1.1\r\nHost : x\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b'POST /check HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"key":"k"}',
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /health HTTP/1.0\r\nHost: x\r\nHost: x\r\n\r\n",
        b"GET /api/nodes HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\n\r\n",
        b"POST /check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        (
            b"POST /check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        ),
        b"POST /acquire HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 this is TLS",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"NONSENSE /check HTTP/1.1\r\n\r\n",
    ],
)
def test_what_http_does_not_allow_is_refused_and_closed(raw: Raw, request_bytes: bytes) -> None:
    answer = raw.send(request_bytes).answer()
    assert (answer.status, answer.headers["connection"]) == (400, "close")
    assert answer.json["code"] == "bad-request"
    assert raw.is_closed()


def test_http_1_0_needs_no_host(raw: Raw) -> None:
    assert raw.send(b"GET /health/live HTTP/1.0\r\n\r\n").answer().status == 200


def test_a_doubtful_request_does_not_cost_the_answer_before_it(raw: Raw, key: str) -> None:
    raw.send(
        post({"key": key}) + post({"key": key}, "/check", "Host: another") + post({"key": key})
    )
    assert [one.status for one in raw.answers(2)] == [200, 400]
    assert raw.is_closed()


def test_garbage_behind_a_good_request_does_not_cost_its_answer(raw: Raw, key: str) -> None:
    raw.send(post({"key": key}) + b"\x00\x01garbage\r\n\r\n")
    assert [one.status for one in raw.answers(2)] == [200, 400]
    assert raw.is_closed()


def test_a_head_without_end_is_refused(raw: Raw) -> None:
    raw.send(b"POST /check HTTP/1.1\r\n")
    for at in range(700):
        raw.send(b"X-%d: %b\r\n" % (at, b"y" * 100))
    assert raw.answer().status == 400
    assert raw.is_closed()


def test_half_a_body_counts_nothing(running: Service, key: str) -> None:
    with Raw(running.port) as raw:
        raw.send(post({"key": key})[:-3])
        raw.socket.shutdown(socket.SHUT_WR)
        assert raw.is_closed()
    assert running.used(key) == 0


def test_a_client_that_leaves_without_reading_affects_no_other(running: Service, key: str) -> None:
    for _ in range(20):
        with Raw(running.port) as raw:
            raw.send(post({"key": key}) * 5)
    assert running.check(f"{key}:other")["allowed"] is True
    assert running.used(key) == 100


@pytest.mark.parametrize(
    "line, status",
    [
        ("POST http://localhost/check HTTP/1.1", 200),
        ("GET /check HTTP/1.1", 405),
        ("PUT /check HTTP/1.1", 405),
        ("OPTIONS * HTTP/1.1", 404),
        ("POST /check/ HTTP/1.1", 404),
        ("POST //check HTTP/1.1", 404),
        ("POST /CHECK HTTP/1.1", 404),
        ("POST /%63heck HTTP/1.1", 200),
        ("CONNECT localhost:80 HTTP/1.1", 400),
    ],
)
def test_request_lines(raw: Raw, key: str, line: str, status: int) -> None:
    whole = post({"key": key}).partition(b"\r\n")[2]
    answer = raw.send(line.encode() + b"\r\n" + whole).answer()
    assert answer.status == status
    if status != 200:
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "media, status",
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ('Application/JSON;charset="UTF-8"', 200),
        ("application/json; charset=utf-16", 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("", 415),
        (None, 415),
    ],
)
@pytest.mark.parametrize("path", ["/check", "/check?status=0", "/acquire"])
def test_the_content_type_must_be_json(
    raw: Raw, key: str, media: str | None, status: int, path: str
) -> None:
    body = {"key": key, "limit": 5}
    assert raw.send(post(body, path, media=media)).answer().status == status


def test_an_encoded_body_is_refused(raw: Raw, key: str) -> None:
    answer = raw.send(post({"key": key}, "/check", "Content-Encoding: gzip")).answer()
    assert (answer.status, answer.json["code"]) == (415, "not-json")


@pytest.mark.parametrize("asked", ["/check?status=1", "header"])
def test_a_denial_is_a_status_for_those_who_ask(raw: Raw, key: str, asked: str) -> None:
    path, *lines = ("/check", "X-Headgate-Status: 1") if asked == "header" else (asked,)
    body = {"key": key, "limit": 1}
    allowed, denied = [raw.send(post(body, path, *lines)).answer() for _ in range(2)]
    assert (allowed.status, denied.status) == (200, 429)
    assert denied.json["allowed"] is False
    assert int(denied.headers["retry-after"]) >= 1
    assert raw.send(post(body)).answer().status == 200


def test_what_never_fits_has_no_time_to_come_back(raw: Raw, key: str) -> None:
    answer = raw.send(post({"key": key, "limit": 5, "cost": 6}, "/check?status=1")).answer()
    assert answer.status == 429
    assert (answer.json["never"], answer.json["retry_after"]) == (True, None)
    assert "retry-after" not in answer.headers


def test_an_upgrade_that_is_not_offered_is_ignored_or_refused(running: Service, key: str) -> None:
    lines = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    with Raw(running.port) as raw:
        get = "\r\n".join(["GET /page.css HTTP/1.1", "Host: x", *lines, "", ""]).encode()
        assert raw.send(get).answer().status == 200
        assert raw.is_closed()
    with Raw(running.port) as raw:
        answer = raw.send(post({"key": key}, "/check", *lines)).answer()
        assert (answer.status, answer.json["code"]) == (400, "bad-request")
        assert raw.is_closed()
    assert running.used(key) == 0


BODIES = [
    {"key": "same", "cost": 0},
    {"key": "same", "cost": 0, "limit": 7, "window": 3600, "algorithm": "token_bucket", "burst": 3},
    {"key": "same", "cost": 1_000},
    {"key": ""},
    {"key": "same", "limit": -1},
    {"key": "same", "window": 0},
    {"key": "same", "algorithm": "concurrency"},
    {"nothing": 1},
]


@pytest.mark.parametrize("body", BODIES, ids=str)
def test_both_ways_give_the_same_answer(raw: Raw, body: dict[str, object]) -> None:
    """The second path is none that the protocol knows, so it goes through the application."""
    ways = [raw.send(post(body, path)).answer() for path in ("/check", "/check?x=1")]
    hot, routed = ways
    assert hot.status == routed.status
    told, also_told = ({**way.json, "reset_after": 0, "retry_after": 0} for way in ways)
    assert told == also_told
    names = set(routed.headers) - {"x-content-type-options"}
    assert set(hot.headers) == names
    same = names & {
        "content-type",
        "ratelimit-policy",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
    }
    assert {name: hot.headers[name] for name in same} == {
        name: routed.headers[name] for name in same
    }


def test_nothing_is_read_from_a_client_that_reads_nothing(running: Service, key: str) -> None:
    with Raw(running.port, timeout=0.5) as raw:
        sent = _send_until_it_blocks(raw, post({"key": key, "cost": 0}) * 500)
        assert sent < 32_000_000
        assert running.check(f"{key}:other")["allowed"] is True
        raw.socket.settimeout(10)
        assert [one.status for one in raw.answers(2_000)] == [200] * 2_000


def _send_until_it_blocks(raw: Raw, data: bytes) -> int:
    """Answers fill the buffers, and then requests do."""
    sent = 0
    while sent < 64_000_000:
        try:
            raw.send(data)
        except TimeoutError:
            return sent
        sent += len(data)
    return sent


@pytest.mark.parametrize("path", ["/check", "/check/batch", "/decide", "/reserve", "/acquire"])
@pytest.mark.parametrize("expect", [(), ("Expect: 100-continue",)])
def test_a_cross_site_page_cannot_send_checks(
    raw: Raw, key: str, path: str, expect: tuple[str, ...]
) -> None:
    """DNS rebinding: its owner has bound its name to 127.0.0.1, but the browser tells the Origin."""
    body = {"key": key, "limit": 5}
    answer = raw.send(post(body, path, "Origin: http://evil.example:8080", *expect)).answer()
    if answer.status == 100:
        answer = raw.answer()
    assert answer.status == 421
    assert answer.json["code"] == "wrong-host"
    ours = raw.send(post({"key": key}, "/check", "Origin: http://localhost:1234")).answer()
    assert ours.json["remaining"] == 99
    proxied = raw.send(
        post({"key": key}).replace(b"Host: localhost", b"Host: api.example")
    ).answer()
    assert proxied.json["remaining"] == 98


@pytest.mark.parametrize("target", ["POST /check", "GET /api/nodes", "POST /reserve"])
def test_an_authorization_is_shown_once(raw: Raw, target: str) -> None:
    lines = "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n"
    raw.send(f"{target} HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: 0\r\n\r\n".encode())
    assert raw.answer().status == 400
    assert raw.is_closed()
