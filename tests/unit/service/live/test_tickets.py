from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from headgate.service.live.tickets import LIFETIME, Tickets
from headgate.service.security.auth import Auth, Caller
from headgate.service.security.tokens import new_token

if TYPE_CHECKING:
    from pathlib import Path

    from headgate.service.security.tokens import Role

ORIGIN = "http://limits.example"


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def inline(name: str, role: Role) -> str:
    _, token = new_token(name, role, now=datetime.now(UTC))
    return f"sha256:{role}:{name}:{token.sha256}"


ANN = Caller("ann", "operator")
TOKENS = inline("ann", "operator")


def test_a_ticket_identifies_its_holder_once() -> None:
    tickets = Tickets(Auth(TOKENS), "")
    ticket = tickets.give(ANN, ORIGIN)
    assert tickets.take(ticket, ORIGIN, "10.0.0.1") == Caller("ann", "operator", "10.0.0.1")
    assert tickets.take(ticket, ORIGIN) is None


def test_other_processes_accept_a_ticket_and_token_hashes_alone_cannot_forge_one() -> None:
    ticket = Tickets(Auth(TOKENS), "secret").give(ANN, ORIGIN)
    assert Tickets(Auth(TOKENS), "guessed").take(ticket, ORIGIN) is None
    assert Tickets(Auth(TOKENS), "secret").take(ticket, ORIGIN) == ANN


def test_workers_that_share_a_folder_accept_a_ticket_once(tmp_path: Path) -> None:
    clock = Clock()
    one, two = (Tickets(Auth(TOKENS), "s", clock, tmp_path) for _ in range(2))
    ticket = one.give(ANN, ORIGIN)
    assert two.take(ticket, ORIGIN) == ANN
    assert one.take(ticket, ORIGIN) is None
    clock.now += LIFETIME + 1
    assert two.take(two.give(ANN, ORIGIN), ORIGIN) == ANN
    assert len(list(tmp_path.iterdir())) == 1  # What is over is swept.


def test_a_ticket_expires_after_ten_seconds() -> None:
    clock = Clock()
    tickets = Tickets(Auth(TOKENS), "", clock)
    ticket = tickets.give(ANN, ORIGIN)
    clock.now += LIFETIME
    assert tickets.take(ticket, ORIGIN) is None


def test_a_ticket_needs_its_origin_and_a_valid_token() -> None:
    ticket = Tickets(Auth(TOKENS), "").give(ANN, ORIGIN)
    assert Tickets(Auth(TOKENS), "").take(ticket, "http://evil.example") is None
    renewed = Auth(inline("ann", "operator"))  # The same name, and another token.
    assert Tickets(renewed, "").take(ticket, ORIGIN) is None
    assert Tickets(Auth(inline("bob", "viewer")), "").take(ticket, ORIGIN) is None


def test_without_tokens_tickets_are_signed_with_the_secret_of_the_store_url() -> None:
    ticket = Tickets(Auth(), "redis://:secret@db").give(Caller("anybody", "admin"), ORIGIN)
    assert Tickets(Auth(), "redis://:other@db").take(ticket, ORIGIN) is None
    found = Tickets(Auth(), "redis://:secret@db").take(ticket, ORIGIN)
    assert found == Caller("anybody", "admin")


@pytest.mark.parametrize(
    "ticket", ["", ".", "a.b", "WyJhbm4iXQ.x", "x" * 5_000, "é.é", "WzEsMiwzLDRd.AAAA"]
)
def test_a_malformed_ticket_is_refused(ticket: str) -> None:
    assert Tickets(Auth(TOKENS), "").take(ticket, ORIGIN) is None


@pytest.mark.parametrize("place", [0, 20, -2, -20])
def test_a_modified_ticket_is_refused(place: int) -> None:
    tickets = Tickets(Auth(TOKENS), "")
    text = list(tickets.give(ANN, ORIGIN))
    text[place] = "A" if text[place] != "A" else "B"
    assert tickets.take("".join(text), ORIGIN) is None
