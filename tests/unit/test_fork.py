"""A forked child goes on counting for itself, and leaves what belongs to its parent alone."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

HEAD = """
import os, signal, sys, threading, time
from headgate import Limiter, MemoryEngine, StateFileError, UsageError

def in_child(work):
    child = os.fork()
    if not child:
        signal.alarm(10)  # A deadlock ends here.
        try:
            work()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def run(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", HEAD + script],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_lock_that_another_thread_holds_does_not_stop_the_child() -> None:
    run("""
limiter = Limiter(MemoryEngine())
limiter.hit("key", "5/hour")
held, done = threading.Event(), threading.Event()

def hold():
    with limiter.engine.unguarded._core.lock:
        held.set()
        done.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()

def child():
    assert limiter.hit("key", "5/hour").remaining == 3
    assert limiter.check("key", "5/hour").remaining == 3

code = in_child(child)
done.set()
thread.join()
assert code == 0, code
assert limiter.check("key", "5/hour").remaining == 4
""")


def test_a_child_can_hold_slots_whatever_the_renewer_did() -> None:
    """It has a thread of its own, and does not renew what its parent holds."""
    run("""
limiter = Limiter(MemoryEngine())
slots = limiter.concurrency("jobs", 2)
with slots.slot(), limiter._renewer._starting:

    def child():
        assert not limiter._renewer._due
        with slots.slot(ttl=0.6) as slot:
            held_until = slot._held_until
            deadline = time.monotonic() + 10
            while slot._held_until == held_until and time.monotonic() < deadline:
                threading.Event().wait(0.01)
            assert slot._held_until > held_until  # It was renewed.
            assert not slot.lost
        limiter.close()

    assert in_child(child) == 0
""")


def test_a_child_that_leaves_a_block_gives_nothing_back_that_its_parent_holds() -> None:
    run("""
import asyncio
from headgate import AsyncLimiter

class Left(Exception):
    pass

def leave():
    # As a store would see it: the child's copy of the counts is what it has told.
    limiter = Limiter(MemoryEngine())
    slots, limit = limiter.concurrency("slots", 1), limiter.limit("units", "10/hour")
    slot = slots.slot()
    try:
        with slot, limit.reserve(10):
            child = os.fork()
            if in_parent(child):
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    except Left:
        assert slots.stats().remaining == limit.stats().remaining == 0
        slots.reset()
        slot.acquire()  # The object is the child's own, and can be used again.
        slot.release()
        assert slots.stats().remaining == 1
        os._exit(0)
    assert slots.stats().remaining == 1

def in_parent(child):
    if not child:
        signal.alarm(10)
        raise Left
    return True

leave()

async def leave_async():
    limiter = AsyncLimiter(MemoryEngine())
    slots, limit = limiter.concurrency("slots", 1), limiter.limit("units", "10/hour")
    try:
        async with slots.slot(), limit.reserve(10):
            child = os.fork()
            if in_parent(child):
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    except Left:
        assert (await slots.stats()).remaining == (await limit.stats()).remaining == 0
        os._exit(0)
    assert (await slots.stats()).remaining == 1

asyncio.run(leave_async())
""")


def test_a_child_neither_saves_nor_closes_the_state_file_of_its_parent(tmp_path: Path) -> None:
    run(f"""
path = {str(tmp_path / "limits.state")!r}
limiter = Limiter(f"memory://?state_file={{path}}")
limiter.hit("key", "5/day")

def refused():
    try:
        MemoryEngine(state_file=path)
    except StateFileError:
        return True

def child():
    limiter.hit("key", "5/day")
    try:
        limiter.engine.unguarded.save()
    except UsageError as error:
        assert str(os.getppid()) in str(error), error
    else:
        raise AssertionError("the child saved")
    limiter.close()
    assert not os.path.exists(path)
    assert refused()

assert in_child(child) == 0
assert refused()
limiter.close()
with Limiter(f"memory://?state_file={{path}}") as again:
    assert again.check("key", "5/day").remaining == 4
""")


def test_a_child_that_lives_on_does_not_keep_the_file_from_the_next_start(tmp_path: Path) -> None:
    run(f"""
engine = MemoryEngine(state_file={str(tmp_path / "limits.state")!r})
reader, writer = os.pipe()
lives, tell = os.pipe()
child = os.fork()
if not child:
    os.close(writer)
    os.write(tell, b"!")
    os.read(reader, 1)  # Until the parent has closed its end.
    os._exit(0)
os.read(lives, 1)
engine._core.file._lock.close()  # What dying would do.
MemoryEngine(state_file={str(tmp_path / "limits.state")!r}).close()
os.close(writer)
os.waitpid(child, 0)
os._exit(0)
""")
