"""Gates: the fast path, the ASGI routes and management refuse the same requests, for the same reason."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from headgate.service.security.tokens import new_token, write_tokens
from tests.service.raw import Raw
from tests.service.running import Service, service

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE = 50_000_000


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, str]]:
    """A service whose checks need a token, and the token."""
    file = tmp_path_factory.mktemp("gates") / "tokens"
    text, kept = new_token("tester", "admin", now=datetime.now(UTC))
    write_tokens(file, [kept])
    with service("--tokens", str(file), "--set", "check_needs_token=true") as running:
        yield running, text


@pytest.mark.parametrize(
    "path",
    ["POST /check", "POST /check?x=1", "POST /reserve", "POST /api/explain"],
    ids=["fast path", "routed", "awaited", "management"],
)
@pytest.mark.parametrize(
    "sent, status",
    [
        (("", "text/plain", LARGE), 401),  # Whoever may not ask learns nothing else.
        (("", "application/json", 2), 401),
        (("token", "text/plain", LARGE), 415),
        (("token", "text/plain", 2), 415),
        (("token", "application/json; charset=latin-1", 2), 415),
        (("token", "application/json", LARGE), 413),
    ],
)
def test_the_order_is_the_same_everywhere(
    guarded: tuple[Service, str], path: str, sent: tuple[str, str, int], status: int
) -> None:
    running, text = guarded
    token, media, length = sent
    shown = f"Authorization: Bearer {text}\r\n" if token else ""
    head = f"{path} HTTP/1.1\r\nHost: localhost\r\n{shown}Content-Type: {media}\r\n"
    with Raw(running.port) as raw:
        raw.send(f"{head}Content-Length: {length}\r\n\r\n".encode())
        if length == 2:
            raw.send(b"{}")
        assert raw.answer().status == status
