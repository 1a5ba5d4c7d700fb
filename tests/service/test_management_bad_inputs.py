"""Hostile and broken requests to management: a clear 4xx, and nothing changed."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.inside import Inside, inside, shared_inside

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    Tell = Callable[[Callable[[Inside], Awaitable[Any]]], Any]

JSON = "application/json"


@pytest.fixture(scope="module")
def tell() -> Iterator[Tell]:
    with shared_inside() as found:
        yield found


async def send(
    service: Inside, method: str, path: str, content: bytes, kind: str | None = JSON, **headers: str
) -> tuple[int, dict[str, Any]]:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if kind is not None:
        given["content-type"] = kind
    answer = await service.client.request(method, path, content=content, headers=given)
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.status_code, answer.json()


@pytest.mark.parametrize(
    "content, status",
    [
        (b"", 422),
        (b"{", 400),
        (b"[]", 422),
        (b"null", 422),
        (b"\xff\xfe{\x00}\x00", 400),
        (b'{"limit": 5, "limit": 5000000}', 400),
        (b'{"a":' * 1_000 + b"1" + b"}" * 1_000, 400),
        (b'{"limit": 5, "unknown": 1}', 422),
        (b'{"limit": true}', 422),
        (b'{"limit": "5"}', 422),
        (b'{"limit": 5.5}', 422),
        (b'{"limit": -1}', 422),
        (b'{"limit": 1e999}', 422),
        (b'{"limit": 9007199254740992}', 422),
        (b'{"limit": %s}' % (b"9" * 5_000), 422),
        (b'{"limit": 5, "window": NaN}', 400),
        (b'{"limit": 5, "window": 0}', 422),
        (b'{"limit": 5, "window": 1e300}', 422),
        (b'{"limit": 5, "algorithm": "leaky"}', 422),
        (b'{"limit": 5, "algorithm": "concurrency"}', 422),
        (b'{"limit": 5, "algorithm": "sliding_log", "burst": 5}', 422),
        (b'{"limit": 5, "burst": 0}', 422),
        (b'{"limit": 5, "reason": "%s"}' % (b"x" * 501), 422),
        (b'{"limit": 5, "reason": "\\ud800"}', 400),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_body_is_refused_and_changes_nothing(tell: Tell, content: bytes, status: int) -> None:
    async def story(service: Inside) -> None:
        written = service.node.audit.entries
        code, problem = await send(service, "PUT", "/api/limits/k", content)
        assert (code, problem["status"]) == (status, status)
        assert not service.node.board.view.limits
        assert service.node.audit.entries == written

    tell(story)


@pytest.mark.parametrize("ttl", ["0", "-1", "1e999", "31622401", '"60"', "null"])
def test_an_invalid_duration_is_refused(tell: Tell, ttl: str) -> None:
    async def story(service: Inside) -> int:
        body = f'{{"limit": 5, "ttl": {ttl}}}'.encode()
        return (await send(service, "PUT", "/api/overrides/k", body))[0]

    assert tell(story) == 422


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/json; charset=utf-16",
    ],
)
def test_a_form_or_a_cross_site_post_is_refused(tell: Tell, kind: str | None) -> None:
    """A page of somebody else can send these without being asked; JSON it cannot."""

    async def story(service: Inside) -> None:
        code, _ = await send(service, "PUT", "/api/bans/k", b'{"reason": "csrf"}', kind)
        assert code == 415
        assert not service.node.board.view.bans

    tell(story)


@pytest.mark.parametrize(
    "number, status, code, told",
    [
        (b"1" * 5_000, 422, "bad-value", "a number in the body is too large"),
        (b"1e999", 422, "bad-value", "a number in the body is too large"),
        (b"NaN", 400, "bad-json", "NaN and Infinity are not JSON numbers"),
        (b"-Infinity", 400, "bad-json", "NaN and Infinity are not JSON numbers"),
        (b"1" * 300, 422, "bad-value", "ttl must be at most"),
    ],
)
def test_an_unusable_number_is_reported_as_such(
    tell: Tell, number: bytes, status: int, code: str, told: str
) -> None:
    async def story(service: Inside) -> None:
        found, problem = await send(service, "PUT", "/api/bans/k", b'{"ttl": %b}' % number)
        assert (found, problem["code"]) == (status, code)
        assert told in problem["detail"]

    tell(story)


@pytest.mark.parametrize(
    "named, pointer, told",
    [
        ({"rule": "login", "window": 60}, "#/rule", "give either the rule, or the window"),
        (
            {"rule": "login", "algorithm": "sliding_log"},
            "#/rule",
            "give either the rule, or the window",
        ),
        ({"algorithm": "sliding_log"}, "#/algorithm", "also needs a window"),
        ({"window": 60, "algorithm": "concurrency"}, "#/algorithm", "there is no algorithm"),
        ({"window": 60, "algorithm": "gcra"}, "#/algorithm", "there is no algorithm"),
        ({"window": 1e-9}, "#/window", "a window must last"),
    ],
)
def test_a_reset_that_names_no_one_state_is_refused(
    tell: Tell, named: dict[str, Any], pointer: str, told: str
) -> None:
    async def story(service: Inside) -> None:
        answer = await service.ask("POST", "/api/reset", {"key": "k", **named})
        assert answer.status_code == 422
        (error,) = answer.json()["errors"]
        assert error["pointer"] == pointer
        assert told in error["detail"]

    tell(story)


@pytest.mark.parametrize(
    "method, path, allow",
    [
        ("POST", "/api/nodes", "GET"),
        ("HEAD", "/api/nodes", "GET"),
        ("PATCH", "/api/bans/k", "DELETE, PUT"),
        ("GET", "/api/reset", "POST"),
        ("GET", "/check", "POST"),
        ("DELETE", "/health", "GET"),
    ],
)
def test_a_wrong_method_is_refused_with_the_right_ones(
    tell: Tell, method: str, path: str, allow: str
) -> None:
    async def story(service: Inside) -> None:
        answer = await service.ask(method, path, {} if method in {"POST", "PATCH"} else None)
        assert (answer.status_code, answer.headers["allow"]) == (405, allow)
        if method != "HEAD":
            assert answer.json()["detail"].startswith(f"this address takes {allow}; ")

    tell(story)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
@pytest.mark.parametrize("path", ["/api/nothing", "/nothing"])
def test_an_unknown_path_is_refused_with_where_to_look(tell: Tell, method: str, path: str) -> None:
    async def story(service: Inside) -> None:
        answer = await service.ask(method, path, {} if method == "POST" else None)
        assert answer.status_code == 404
        if method != "HEAD":
            assert answer.json()["detail"] == "the page /docs lists all endpoints"

    tell(story)


def test_no_other_site_is_allowed_to_read_answers(tell: Tell) -> None:
    async def story(service: Inside) -> None:
        answer = await service.ask("GET", "/api/nodes", origin="https://evil.example")
        assert not [name for name in answer.headers if name.startswith("access-control")]
        preflight = await service.client.options(
            "/api/nodes",
            headers={"origin": "https://evil.example", "access-control-request-method": "PUT"},
        )
        assert preflight.status_code == 405
        assert not [name for name in preflight.headers if name.startswith("access-control")]

    tell(story)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8080", "8.8.8.8", "[::2]"]
)
def test_without_tokens_the_host_must_be_this_machine(tell: Tell, host: str) -> None:
    """A name that its owner has bound to 127.0.0.1 makes a browser send its pages' requests here."""

    async def story(service: Inside) -> None:
        assert (await service.ask("GET", "/api/nodes", host=host)).status_code == 421
        assert (await service.ask("GET", "/metrics", host=host)).status_code == 421
        assert (await service.ask("GET", "/health", host=host)).status_code == 200
        assert (await service.ask("GET", "/", host=host)).status_code == 200
        check = await service.ask("POST", "/check", {"key": "k"}, host=host)
        assert (
            check.status_code == 200
        )  # Proxies on this machine pass on the name they were asked by.
        assert (await service.ask("GET", "/api/nodes", host="localhost:9")).status_code == 200

    tell(story)


def test_a_large_body_is_refused_before_it_is_read(tell: Tell) -> None:
    async def story(service: Inside) -> None:
        body = b'{"reason": "' + b"x" * 1_100_000 + b'"}'
        assert (await send(service, "PUT", "/api/bans/k", body))[0] == 413

        async def chunks() -> Any:
            for _ in range(200):
                yield b"x" * 10_000
                await asyncio.sleep(0)

        answer = await service.client.put(
            "/api/bans/k", content=chunks(), headers={"content-type": JSON}
        )
        assert answer.status_code == 413

    tell(story)


@pytest.mark.parametrize(
    "path",
    [
        "/api/top?limit=0", "/api/top?limit=x", "/api/top?limit=1e9", "/api/audit?before=-1",
        "/api/counters?limit=1001",
        "/api/bans/" + "x" * 8_193, "/api/history?limit=", "/api/audit?limit=99999999999999999999999",
    ],
    ids=lambda path: path[:40],
)  # fmt: skip
def test_bad_parameters_are_refused(tell: Tell, path: str) -> None:
    async def story(service: Inside) -> int:
        method = "PUT" if "bans" in path else "GET"
        return (await send(service, method, path, b"{}" if method == "PUT" else b""))[0]

    assert tell(story) == 422


@pytest.mark.parametrize(
    "path",
    ["/api/../etc/passwd", "/api/%2e%2e/%2e%2e/etc/passwd", "/api/rules/..%2f..%2fetc", "/api/"],
)
def test_path_traversal_reaches_no_files(tell: Tell, path: str) -> None:
    async def story(service: Inside) -> int:
        return (await service.ask("GET", path)).status_code

    assert tell(story) == 404


def test_what_was_sent_is_escaped_in_logs_and_labels(
    tell: Tell, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(service: Inside) -> None:
        hostile = "evil\r\n\x1b[2J" + "x" * 5_000
        await service.ask("POST", "/api/reset", {"key": hostile})
        await service.ask("PUT", "/api/bans/evil%0d%0a%1b[2J", {"reason": "a\r\nb"})
        await service.ask("DELETE", "/api/bans/evil%0d%0a%1b[2J")
        (entry, *_) = service.node.audit.recent(1)
        line = json.dumps(entry)
        assert "\n" not in line
        assert "\x1b" not in line
        assert "evil" not in (await service.ask("GET", "/metrics")).text
        assert "evil" not in caplog.text

    tell(story)


def test_a_flood_of_keys_in_bans_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.board.board.MAX_KEPT", 20)

    async def story(service: Inside) -> None:
        codes = [(await service.ask("PUT", f"/api/bans/{i}", {})).status_code for i in range(22)]
        assert codes == [200] * 20 + [422] * 2
        assert service.node.audit.recent(1)[0]["action"] == "ban.put.failed"

    inside(story)


@pytest.mark.parametrize("place", ["bans/%ff", "limits/a%C3", "rules/%ED%A0%80", "nothing/%ff"])
def test_an_address_that_is_no_text_is_refused(tell: Tell, place: str) -> None:
    """It would be taken for another key: the one with a question mark in a box."""

    async def story(service: Inside) -> None:
        status, problem = await send(service, "PUT", f"/api/{place}", b'{"limit": 1}')
        assert (status, problem["code"]) == (400, "bad-request")
        assert "is not UTF-8" in problem["detail"]
        answer = await service.ask("GET", "/api/counters?prefix=%ff")
        assert answer.status_code == 400
        assert not service.node.board.view.bans

    tell(story)


def test_an_unknown_path_with_a_line_feed_is_unknown_too(tell: Tell) -> None:
    async def story(service: Inside) -> str:
        answer = await service.ask("GET", "/api/nothing%0Ahere")
        return str(answer.json()["detail"])

    assert tell(story) == "the page /docs lists all endpoints"
