"""The kill switch: what it lets pass, what it leaves alone, and its file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headgate import (
    Charge,
    ConfigError,
    EngineConnectionError,
    FixedWindow,
    Limiter,
    MemoryEngine,
    Request,
    RuleSet,
    UsageError,
)
from headgate.guards.kill_switch import KillSwitch, KillSwitchGuard

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ONE = FixedWindow(1, 3_600_000_000)
RULES = RuleSet.parse("""
rules:
  - {rule_id: login, identifier: ip_address, rate: 1/hour, match: {path_pattern: /login}}
  - {rule_id: all, identifier: ip_address, rate: 2/hour}
""")


@pytest.fixture
def switch() -> KillSwitch:
    return KillSwitch()


@pytest.fixture
def limiter(switch: KillSwitch) -> Limiter:
    return Limiter(guards=[KillSwitchGuard(switch)], rules=RULES)


def login(limiter: Limiter) -> tuple[bool, list[str | None]]:
    decision = limiter.decide_request(Request("POST", "/login", ip="203.0.113.9"))
    return decision.allowed, [one.rule for one in decision.rules]


def test_everything_passes_and_nothing_is_counted(switch: KillSwitch, limiter: Limiter) -> None:
    assert [limiter.hit("k", ONE).allowed for _ in range(2)] == [True, False]
    switch.turn_off(reason="it denies everybody")
    decision = limiter.hit("k", ONE)
    assert (decision.allowed, decision.source, decision.degraded) == (True, "open", True)
    assert decision.reason == "limits are turned off: it denies everybody"
    assert not decision.limited
    assert limiter.hit("fresh", ONE).allowed
    assert limiter.decide([Charge("k", ONE), Charge("k2", ONE)]).allowed
    assert login(limiter) == (True, [])
    with limiter.concurrency("s", 0).slot(), limiter.reserve([Charge("k", ONE)]) as reserved:
        assert not reserved.settle(1)
    assert switch.turn_on()
    assert not limiter.hit("k", ONE)
    assert limiter.hit("fresh", ONE)
    assert not switch.turn_on()


def test_one_rule_is_off_and_the_others_hold(switch: KillSwitch, limiter: Limiter) -> None:
    switch.turn_off("login")
    assert [login(limiter) for _ in range(3)] == [(True, ["all"])] * 2 + [(False, ["all"])]
    assert [limiter.hit("k", ONE).allowed for _ in range(2)] == [True, False]
    switch.turn_on("login")
    switch.turn_off("all")
    assert login(limiter) == (True, ["login"])
    assert login(limiter) == (False, ["login"])


def test_a_reservation_is_settled_by_the_rules_that_hold(
    switch: KillSwitch, limiter: Limiter
) -> None:
    ten = FixedWindow(10, 3_600_000_000)
    switch.turn_off("login")
    with limiter.reserve(
        [Charge(key, ten, 9, rule=rule) for key, rule in (("a", "login"), ("b", "all"))]
    ) as reserved:
        assert reserved.settle(9, 2)
    assert limiter.engine.usage("b", ten, "all").used == 2
    assert limiter.engine.usage("a", ten, "login").used == 0
    with limiter.reserve([Charge("b", ten, 8, rule="all"), Charge("a", ten, 1, rule="login")]):
        pass
    assert limiter.engine.usage("b", ten, "all").used == 10


class Busy(MemoryEngine):
    """Certainly does not settle, now and then."""

    away = False

    def settle(self, token: str, actual: int | Sequence[int]) -> bool:
        if self.away:
            raise EngineConnectionError("it is away", transient=True)
        return super().settle(token, actual)


def test_what_a_settled_reservation_was_made_of_is_forgotten(switch: KillSwitch) -> None:
    """And not before that, so that it can be settled again after an error."""
    engine, guard = Busy(), KillSwitchGuard(switch)
    limiter = Limiter(engine, guards=[guard])
    switch.turn_off("login")
    charges = [Charge(key, ONE, rule=rule) for key, rule in (("a", "login"), ("b", "all"))]
    with limiter.reserve(charges) as reserved:
        engine.away = True
        with pytest.raises(EngineConnectionError):
            reserved.settle(1, 0)
        engine.away = False
        assert len(guard._left) == 1
        assert reserved.settle(1, 0)
    assert not guard._left
    assert engine.usage("b", ONE, "all").used == 0


def test_invalid_calls_are_still_refused(switch: KillSwitch, limiter: Limiter) -> None:
    switch.turn_off()
    for key, cost in (("", 1), ("k", -1), (5, 1)):
        with pytest.raises(UsageError):
            limiter.hit(key, ONE, cost)  # type: ignore[arg-type]
    for what in ("", "two words", "# comment"):
        with pytest.raises(UsageError):
            switch.turn_off(what)


def test_batches_of_keys_pass_too(switch: KillSwitch, limiter: Limiter) -> None:
    hit_run = limiter.engine.bind_run(ONE)
    assert hit_run is not None
    assert hit_run(["a", "b"], 1) is not None
    switch.turn_off()
    assert hit_run(["a", "b"], 1) is None


class TestTheFile:
    def test_two_processes_share_it(self, tmp_path: Path) -> None:
        path = tmp_path / "state" / "off"
        one, two = KillSwitch(path), KillSwitch(path)
        one.turn_off("login", "why\nnot")
        one.turn_off()
        assert two.off == {}
        two.refresh()
        assert two.off == {"login": "why not", "*": ""}
        assert KillSwitch(path).off == two.off
        two.turn_on()
        one.refresh()
        assert one.off == {"login": "why not"}

    def test_a_person_can_write_it(self, tmp_path: Path) -> None:
        path = tmp_path / "off"
        switch = KillSwitch(path)
        path.write_text("\n# a comment\n  *   in a hurry  \nlogin\n")
        switch.refresh()
        assert switch.off == {"*": "in a hurry", "login": ""}
        path.unlink()
        switch.refresh()
        assert switch.off == {}

    def test_one_that_cannot_be_read_changes_nothing(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "off"
        path.write_text("login\n")
        switch = KillSwitch(path)
        path.write_bytes(b"\xff\xfe all \x80")
        for _ in range(3):
            switch.refresh()
        assert switch.off == {"login": ""}
        assert caplog.text.count("cannot be read") == 1
        path.write_text("*\n")
        switch.refresh()
        assert switch.off == {"*": ""}

    @pytest.mark.parametrize(
        "content",
        [
            b"version: 1\nrules:\n  - rule_id: login\n",
            b"# Settings\nport = 8080\n",
            b"port  =  8080\n",
            b"login"
            + b" " * 1_000_000
            + b"\x01",  # It must not take a step for each pair of spaces.
            b"login too strict\n}\n",
            b"NAME=value\n",
            b"login \x00\x01\n",
            b"\x7fELF\xff\xfe",
            b"a" * 1_048_577,
        ],
    )
    def test_a_file_that_is_something_else_is_not_replaced(
        self, content: bytes, tmp_path: Path
    ) -> None:
        path = tmp_path / "off"
        switch = KillSwitch(path)
        switch.turn_off("login", "why")
        path.write_bytes(content)
        for change in (switch.turn_off, switch.turn_on):
            with pytest.raises(ConfigError, match="cannot be used as a kill switch"):
                change()
            assert path.read_bytes() == content
        assert switch.off == {"login": "why"}
        path.unlink()
        switch.turn_off()
        assert switch.off == {"*": ""}

    def test_only_a_file_is_replaced(self, tmp_path: Path) -> None:
        switch = KillSwitch(tmp_path)
        with pytest.raises(ConfigError, match="it is not a file"):
            switch.turn_off()
        assert tmp_path.is_dir()

    def test_what_a_person_or_another_process_has_just_written_stays_off(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "off"
        one, two = KillSwitch(path), KillSwitch(path)
        path.write_text("# mine\n\n  login   not mine\n")
        one.turn_off("api:v1@x", "= odd")
        two.turn_off("(odd)")
        assert two.off == {"login": "not mine", "api:v1@x": "= odd", "(odd)": ""}
        assert one.turn_on("(odd)")
        assert KillSwitch(path).off == {"login": "not mine", "api:v1@x": "= odd"}

    def test_one_that_cannot_be_written_is_an_error_and_turns_nothing_off(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "file").write_text("")
        switch = KillSwitch(tmp_path / "file" / "off")
        with pytest.raises(ConfigError, match="cannot be written"):
            switch.turn_off()
        assert switch.off == {}
