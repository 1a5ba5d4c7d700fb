"""Who may do what: every role on every endpoint. An endpoint that is not in the table fails the test."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from headgate.service.app import build_app
from headgate.service.management.access import ROLE
from headgate.service.node import Node
from headgate.service.security.tokens import ROLES, Role, new_token, write_tokens
from headgate.service.settings import Settings
from tests.service.inside import Inside, inside

if TYPE_CHECKING:
    from pathlib import Path

RULE = {"rule_id": "r", "identifier": "ip_address", "rate": "5/minute"}
NEEDS: dict[tuple[str, str], tuple[Role, Any]] = {
    ("GET", "/metrics"): ("viewer", None),
    ("GET", "/api/nodes"): ("viewer", None),
    ("GET", "/api/regions"): ("viewer", None),
    ("PUT", "/api/regions/{region}/taken-back"): ("operator", None),
    ("DELETE", "/api/regions/{region}/taken-back"): ("operator", None),
    ("GET", "/api/traffic"): ("viewer", None),
    ("GET", "/api/choice"): ("viewer", None),
    ("PUT", "/api/choice/{key}"): ("operator", {"algorithm": "token_bucket"}),
    ("DELETE", "/api/choice/{key}"): ("operator", None),
    ("GET", "/api/top"): ("viewer", None),
    ("GET", "/api/counters"): ("viewer", None),
    ("GET", "/api/limits"): ("viewer", None),
    ("GET", "/api/overrides"): ("viewer", None),
    ("GET", "/api/blocks"): ("viewer", None),
    ("GET", "/api/bans"): ("viewer", None),
    ("GET", "/api/kill-switch"): ("viewer", None),
    ("PUT", "/api/kill-switch"): ("operator", {}),
    ("DELETE", "/api/kill-switch"): ("operator", None),
    ("PUT", "/api/kill-switch/{rule_id}"): ("operator", {}),
    ("DELETE", "/api/kill-switch/{rule_id}"): ("operator", None),
    ("GET", "/api/rules"): ("viewer", None),
    ("GET", "/api/rules/{rule_id}"): ("viewer", None),
    ("GET", "/api/history"): ("viewer", None),
    ("GET", "/api/keys/{key}"): ("viewer", None),
    ("GET", "/api/live"): ("viewer", None),
    ("POST", "/api/live/ticket"): ("viewer", {}),
    ("POST", "/api/simulate"): ("operator", {"shape": "own", "rate": 1, "seconds": 0.01}),
    ("POST", "/api/explain"): ("viewer", {"key": "k"}),
    ("GET", "/api/audit"): ("operator", None),
    ("POST", "/api/reset"): ("operator", {"key": "k"}),
    ("PUT", "/api/limits/{key}"): ("operator", {"limit": 5}),
    ("DELETE", "/api/limits/{key}"): ("operator", None),
    ("PUT", "/api/overrides/{key}"): ("operator", {"limit": 5, "ttl": 60}),
    ("DELETE", "/api/overrides/{key}"): ("operator", None),
    ("PUT", "/api/bans/{key}"): ("operator", {}),
    ("DELETE", "/api/bans/{key}"): ("operator", None),
    ("PUT", "/api/rules/{rule_id}"): ("admin", {"rule": RULE}),
    ("DELETE", "/api/rules/{rule_id}"): ("admin", None),
    ("POST", "/api/rollback"): ("admin", {}),
}
FOR_ALL = {("GET", path) for path in ("/health", "/health/live", "/health/ready")}
CHECKS = {
    ("POST", path)
    for path in ("/check", "/check/batch", "/decide", "/reserve", "/settle", "/acquire", "/release")
}


def operations() -> dict[tuple[str, str], dict[str, Any]]:
    node = Node(Settings())
    try:
        paths = build_app(node).openapi()["paths"]
    finally:
        node.close()
    return {
        (verb.upper(), path): operation
        for path, verbs in paths.items()
        for verb, operation in verbs.items()
    }


def test_every_endpoint_has_a_row_and_says_its_role() -> None:
    found = operations()
    assert found.keys() == NEEDS.keys() | FOR_ALL | CHECKS
    said = {place: one[ROLE] for place, one in found.items() if ROLE in one}
    assert said == {place: role for place, (role, _) in NEEDS.items()}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    made = {role: new_token(role, role, now=datetime.now(UTC)) for role in ROLES}
    file = tmp_path_factory.mktemp("tokens") / "tokens.json"
    write_tokens(file, [kept for _, kept in made.values()])
    return file, {role: text for role, (text, _) in made.items()}


@pytest.mark.parametrize("role", ["nobody", "stranger", *ROLES])
def test_every_role_on_every_endpoint(tokens: tuple[Path, dict[str, str]], role: str) -> None:
    file, texts = tokens
    headers = {}
    if role != "nobody":
        headers["authorization"] = f"Bearer {texts.get(role, 'hg_wrong')}"

    async def story(service: Inside) -> dict[tuple[str, str], int]:
        service.node.auth._guesses = _NoLimit()  # type: ignore[assignment]  # Guessing has a test of its own.
        found = {}
        for (method, path), (_, body) in NEEDS.items():
            place = path.format(key="some%2Fkey", rule_id="no-such-rule", region="west")
            answer = await service.ask(method, place, body, **headers)
            found[method, path] = answer.status_code
        return found

    def expected(needed: Role) -> str:
        if role not in ROLES:
            return "401"
        return "403" if ROLES.index(role) < ROLES.index(needed) else "may"

    found = inside(story, tokens=str(file))
    told = {place: str(code) if code in {401, 403} else "may" for place, code in found.items()}
    assert told == {place: expected(needed) for place, (needed, _) in NEEDS.items()}
    assert all(code < 500 for code in found.values())


class _NoLimit:
    """Lets everybody guess."""

    def hit(self, key: str, rate: str) -> Any:
        class Answer:
            retry_after = 0.0

        return Answer()


def test_a_caller_without_the_role_learns_nothing_about_what_exists(
    tokens: tuple[Path, dict[str, str]],
) -> None:
    """The same answer, byte by byte, for things that exist and for things that do not; and before any body is read."""
    file, texts = tokens

    async def story(service: Inside) -> None:
        viewer = {"authorization": f"Bearer {texts['viewer']}"}
        rule_id = service.node.rules.rules.rules[0].rule_id
        there = await service.ask("DELETE", f"/api/rules/{rule_id}", **viewer)
        missing = await service.ask("DELETE", "/api/rules/no-such-rule", **viewer)
        assert (there.status_code, there.text) == (missing.status_code, missing.text)
        assert there.status_code == 403
        known, unknown = (
            await service.ask("GET", "/api/nodes"),
            await service.ask("GET", "/api/zzz"),
        )
        assert (known.status_code, known.text) == (unknown.status_code, unknown.text)
        bad = await service.client.put(
            "/api/bans/k", content=b"{{{", headers={"content-type": "application/json"}
        )
        assert bad.status_code == 401

    inside(story, tokens=str(file))


def test_guessing_tokens_is_slowed_down_and_the_right_one_still_passes(
    tokens: tuple[Path, dict[str, str]],
) -> None:
    file, texts = tokens

    async def story(service: Inside) -> None:
        answers = [
            await service.ask("GET", "/api/nodes", authorization=f"Bearer hg_{i}")
            for i in range(12)
        ]
        assert [one.status_code for one in answers] == [401] * 10 + [429] * 2
        assert int(answers[-1].headers["retry-after"]) > 0
        right = await service.ask("GET", "/api/nodes", authorization=f"Bearer {texts['viewer']}")
        assert right.status_code == 200

    inside(story, tokens=str(file))


def test_health_needs_no_token(tokens: tuple[Path, dict[str, str]]) -> None:
    async def story(service: Inside) -> None:
        for _, path in FOR_ALL:
            assert (await service.ask("GET", path)).status_code == 200

    inside(story, tokens=str(tokens[0]))
