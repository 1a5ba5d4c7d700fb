"""The state file: a restart keeps its counts; a damaged or not from Headgate file is refused and left alone."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from headgate import Charge, ConfigError, Limiter, MemoryEngine, StateFileError, UsageError
from headgate.charge import ChargeSet
from headgate.charge_kind import ChargeKind
from headgate.engines._state_store import StateStore
from headgate.rate import limits_of
from headgate.testing import ManualClock
from tests.servers.process import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from headgate.engines._state_store import Copies
    from headgate.engines.state_file import Content

RATES = [
    ("5/hour", "fixed_window"),
    ("5/hour", "sliding_window"),
    ("5/hour", "sliding_log"),
    ("5/hour", "token_bucket"),
    ("5/hour", "exponential_backoff"),
    ("5/hour", "adaptive"),
    ("5/calendar month in Europe/Berlin anchor 15", None),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.state"


def test_a_restart_keeps_every_count(path: Path) -> None:
    """Each algorithm, two namespaces, hostile keys: all answers go on where they stopped."""
    clock = ManualClock()
    keys = ["plain", "new\nline", "nul\0", "emoji 🚪", "{brace}", '"quote"']

    def answers(engine: MemoryEngine, cost: int) -> list[object]:
        return [
            engine.scoped(namespace).bind(limits_of(rate, algorithm)[0])(key, cost).answer
            for namespace in ("", "other")
            for rate, algorithm in RATES
            for key in keys
        ]

    before = MemoryEngine(clock=clock, state_file=path)
    answers(before, 3)
    hold = ChargeSet((Charge("jobs", limits_of("1/hour")[0]),))
    before.decide([hold])
    expected = answers(before, 0)
    before.close()

    clock.advance(60)
    twin_clock = ManualClock(clock.now_us() / 1e6)
    after = MemoryEngine(clock=twin_clock, state_file=path)
    remaining = [answer[1] for answer in answers(after, 0)]  # type: ignore[index]
    assert remaining == [answer[1] for answer in expected]  # type: ignore[index]
    assert not after.decide([hold])[0]
    after.close()


def test_a_restart_keeps_shared_states(path: Path) -> None:
    """With the secret that tells who shares which, so a restart hands out no fresh allowance."""
    clock = ManualClock()
    limit = limits_of("2/hour", "fixed_window")[0]
    before = MemoryEngine(max_keys=1, clock=clock, state_file=path)
    hit = before.bind(limit)
    hit("first", 1)
    assert hit("stranger", 2).degraded
    before.close()

    after = MemoryEngine(max_keys=1, clock=clock, state_file=path)
    hit = after.bind(limit)
    assert not hit("stranger", 1)
    assert hit("first", 1)
    after.close()


def test_hits_continue_while_states_are_encoded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encoding a million states takes seconds, and nobody waits for that; what comes meanwhile is for the next save."""
    clock = ManualClock()
    engine = MemoryEngine(clock=clock, state_file=path)
    hits = [engine.bind(limits_of(rate, algorithm)[0]) for rate, algorithm in RATES]
    for hit in hits:
        hit("key", 2)
    encode = StateStore.content

    def slow(self: StateStore, copies: Copies) -> Content:
        hitting = threading.Thread(
            target=lambda: [hit(key, 1) for hit in hits for key in ("key", "new")], daemon=True
        )
        hitting.start()
        hitting.join(5)
        assert not hitting.is_alive(), "a hit waits for the file"
        return encode(self, copies)

    monkeypatch.setattr(StateStore, "content", slow)
    engine.save()
    monkeypatch.undo()
    saved = path.read_bytes()
    assert all(hit("key", 1).remaining == 1 for hit in hits)
    engine.close()
    path.write_bytes(saved)
    again = MemoryEngine(clock=clock, state_file=path)
    for rate, algorithm in RATES:
        hit = again.bind(limits_of(rate, algorithm)[0])
        assert (hit("key", 1).remaining, hit("new", 1).remaining) == (2, 4)


def test_of_two_saves_the_later_one_is_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is slow: nothing that it has copied before may be written after what the second has copied."""
    encode = StateStore.content
    copied, let_go = threading.Event(), threading.Event()

    def encode_later(store: StateStore, copies: Copies) -> Content:
        if not copied.is_set():
            copied.set()
            let_go.wait()
        return encode(store, copies)

    monkeypatch.setattr(StateStore, "content", encode_later)
    clock = ManualClock()
    engine = MemoryEngine(clock=clock, state_file=path)
    hit = engine.bind(limits_of("5/hour")[0])
    first, second = (threading.Thread(target=engine.save) for _ in range(2))
    first.start()
    assert copied.wait(10)
    hit("key", 5)
    second.start()
    second.join(0.05)  # It would be done by now, if it did not wait.
    let_go.set()
    first.join()
    second.join()
    killed = shutil.copy(path, path.with_name("killed.state"))
    engine.close()
    after = MemoryEngine(clock=clock, state_file=killed)
    assert not after.bind(limits_of("5/hour")[0])("key", 1)
    after.close()


def test_only_its_owner_can_read_the_file(path: Path) -> None:
    """It holds keys, and the secret that keeps strangers from choosing whom they are counted with."""
    MemoryEngine(state_file=path).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_closed_file_is_not_saved_again(path: Path) -> None:
    """Another engine may have it by now."""
    engine = MemoryEngine(state_file=path)
    engine.close()
    path.unlink()
    with pytest.raises(UsageError, match="closed"):
        engine.save()
    assert not path.exists()


def test_without_locks_a_state_file_still_works_and_says_so(path: Path) -> None:
    """Windows has neither `fcntl` nor `fork`."""
    script = f"""
import asyncio, logging, os, random, sys, threading
sys.modules["fcntl"] = None
del os.register_at_fork
logging.basicConfig(level="WARNING", format="%(message)s")
from headgate import Limiter
for _ in range(2):
    with Limiter("memory://?state_file={path}") as limiter:
        print(limiter.hit("key", "5/day").remaining)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "4\n3\n"), done.stderr
    assert "limits.state is not locked" in done.stderr


def test_a_killed_process_loses_at_most_what_came_after_the_last_save(path: Path) -> None:
    """SIGKILL leaves the last saved file, whole."""
    script = f"""
from headgate import Limiter, MemoryEngine
limiter = Limiter(MemoryEngine(state_file={str(path)!r}))
for _ in range(7):
    limiter.hit("key", "10/hour", algorithm="fixed_window")
limiter.engine.unguarded.save()
limiter.hit("key", "10/hour", algorithm="fixed_window")
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -signal.SIGKILL
    limiter = Limiter(MemoryEngine(state_file=path))
    decision = limiter.check("key", "10/hour", algorithm="fixed_window")
    assert decision.remaining in (3, 10)  # 10 only if the hour turned in between.
    limiter.engine.close()


def test_saving_continues_in_the_background(path: Path) -> None:
    """With `save_every` nobody has to remember to save."""
    engine = MemoryEngine(state_file=path, save_every=0.01)
    engine.bind(limits_of("5/hour")[0])("key", 1)
    wait_until(lambda: path.exists() and b"key" in path.read_bytes(), "it was saved")
    engine.close()
    assert path.exists()


def _file(body: bytes, magic: str = "headgate-state", form: str = "1") -> bytes:
    return f"{magic} {form} {sha256(body).hexdigest()} {len(body)}\n".encode() + body


TABLE = ["", None, "fixed_window:3600000000", {"k": [1, 2]}, {"77": [3, 4]}]
GOOD = json.dumps({"secret": "5e" * 16, "tables": [TABLE]}).encode()

BAD_FILES = {
    "empty": b"",
    "foreign": b"#!/bin/sh\nrm -rf /\n",
    "binary": bytes(range(256)) * 4,
    "torn_body": _file(GOOD)[:-3],
    "torn_header": _file(GOOD)[:30],
    "flipped_bit": _file(GOOD).replace(b"[1, 2]", b"[1, 3]"),
    "newer_format": _file(GOOD, form="2"),
    "other_magic": _file(GOOD, magic="headgate-rules"),
    "not_json": _file(b"not json"),
    "not_an_object": _file(b"[1, 2]"),
    "no_tables": _file(json.dumps({"secret": "5e" * 16}).encode()),
    "no_secret": _file(json.dumps({"tables": [TABLE]}).encode()),
    "secret_too_short": _file(GOOD.replace(b"5e5e", b"5e")),
    "secret_is_a_number": _file(GOOD.replace(b'"' + b"5e" * 16 + b'"', b"5")),
    "secret_is_no_hex": _file(GOOD.replace(b"5e5e", b"kkkk")),
    "no_shared_states": _file(json.dumps({"secret": "5e" * 16, "tables": [TABLE[:4]]}).encode()),
    "shared_by_nobody": _file(GOOD.replace(b'"77"', b'"65537"')),
    "shared_by_a_name": _file(GOOD.replace(b'"77"', b'"k"')),
    "shared_twice": _file(GOOD.replace(b'"77"', b'"077"')),
    "shared_state_of_wrong_shape": _file(GOOD.replace(b"[3, 4]", b"[3]")),
    "namespace_is_a_number": _file(GOOD.replace(b'[["", ', b"[[5, ")),
    "rule_is_a_number": _file(GOOD.replace(b"null", b"5")),
    "identity_in_other_words": _file(GOOD.replace(b"3600000000", b"3_600_000_000")),
    "a_table_twice": _file(json.dumps({"secret": "5e" * 16, "tables": [TABLE, TABLE]}).encode()),
    "empty_key": _file(GOOD.replace(b'"k"', b'""')),
    "unknown_algorithm": _file(GOOD.replace(b"fixed_window", b"crystal_ball")),
    "impossible_window": _file(GOOD.replace(b"3600000000", b"-1")),
    "negative_count": _file(GOOD.replace(b"[1, 2]", b"[1, -2]")),
    "boolean_count": _file(GOOD.replace(b"[1, 2]", b"[1, true]")),
    "state_of_wrong_shape": _file(GOOD.replace(b"[1, 2]", b"[1, 2, 3]")),
    "state_is_text": _file(GOOD.replace(b"[1, 2]", b'"12"')),
    "number_too_large": _file(GOOD.replace(b"[1, 2]", b"[1, 9007199254740993]")),
    "deep_nesting": _file(b"[" * 100_000),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_and_left_as_it_is(name: str, path: Path) -> None:
    """The error names the file and the remedy, nothing is overwritten, and the lock is let go."""
    path.write_bytes(BAD_FILES[name])
    with pytest.raises(StateFileError, match=r"limits\.state was refused: .*move it away"):
        MemoryEngine(state_file=path)
    assert path.read_bytes() == BAD_FILES[name]
    path.unlink()
    MemoryEngine(state_file=path).close()


def test_two_engines_cannot_have_one_file(path: Path) -> None:
    """The second is told so, and can have it once the first is closed."""
    first = MemoryEngine(state_file=path)
    with pytest.raises(StateFileError, match="in use by another engine"):
        MemoryEngine(state_file=path)
    first.close()
    MemoryEngine(state_file=path).close()


def test_a_folder_that_does_not_exist_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory; its folder must exist"):
        MemoryEngine(state_file=tmp_path / "missing" / "limits.state")


def test_a_directory_is_no_state_file(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StateFileError, match="cannot read"):
        MemoryEngine(state_file=path)


@pytest.mark.parametrize("name", ["", ".", "/", "nul\0"])
def test_a_state_file_has_a_name(name: str) -> None:
    with pytest.raises(UsageError, match="state_file"):
        MemoryEngine(state_file=name)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e300, True, "1"])
def test_saving_needs_a_pace(seconds: float, path: Path) -> None:
    with pytest.raises(UsageError, match="save_every"):
        MemoryEngine(state_file=path, save_every=seconds)


def test_without_a_file_there_is_nothing_to_save() -> None:
    with pytest.raises(UsageError, match="no state file"):
        MemoryEngine().save()


def test_closing_twice_is_harmless(path: Path) -> None:
    engine = MemoryEngine(state_file=path)
    engine.decide([ChargeSet((Charge("key", "5/hour", kind=ChargeKind.FORCE),))])
    engine.close()
    saved = path.read_bytes()
    engine.close()
    assert path.read_bytes() == saved


def test_a_relative_path_stays_where_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    engine = MemoryEngine(state_file=path.name)
    Limiter(engine).hit("key", "5/hour")
    elsewhere = path.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    engine.close()
    with Limiter(MemoryEngine(state_file=path)) as limiter:
        assert limiter.hit("key", "5/hour").remaining == 3


def test_a_file_that_cannot_be_written_is_let_go(path: Path) -> None:
    folder = path.parent / "gone"
    folder.mkdir()
    engine = MemoryEngine(state_file=folder / "state")
    shutil.rmtree(folder)
    with pytest.raises(StateFileError, match="cannot write the state file"):
        engine.close()
    engine.close()  # There is nothing left to close.
    folder.mkdir()
    MemoryEngine(state_file=folder / "state").close()


def test_saving_needs_somewhere_to_save_to() -> None:
    with pytest.raises(UsageError, match="save_every needs a state_file"):
        MemoryEngine(save_every=5)
