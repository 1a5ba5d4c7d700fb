"""The batcher: whatever goes wrong while a batch is made, nobody waits for ever."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from headgate import EngineBusy, EngineError, EngineTimeout, FixedWindow, UsageError
from headgate.decision import ENGINE
from headgate.engines.redis import batcher
from headgate.engines.redis.batch import PendingBatch
from headgate.engines.redis.batcher import Batcher
from headgate.engines.redis.codec import MAX_RULES
from headgate.engines.redis.link import Link
from headgate.engines.redis.packed_requests import PlainRequest, PlainTemplate

if TYPE_CHECKING:
    from collections.abc import Callable

SOON = 5.0


class FakePart(NamedTuple):
    """What the batcher looks at in a request."""

    name: str
    rules: tuple[bytes, ...] = (b"rule",)
    hooks: None = None


class Store:
    """Answers a batch with the names in it; some names cannot be packed."""

    def __init__(
        self, deadline: float = SOON, max_in_flight: int = 2, max_batch: int = 100
    ) -> None:
        self.sent: list[list[str]] = []
        self.silent = False
        self.answered = True
        self.takes = 0.0
        """How long each call is said to have taken."""
        limits = (max_batch, max_in_flight, deadline)
        loop = asyncio.get_running_loop()
        self.batcher = Batcher(loop, 0, self._send, limits, lambda: None)

    def ask(self, part: FakePart, ends: float | None = None) -> asyncio.Future[Any]:
        asked: Any = self.batcher.ask
        future: asyncio.Future[Any] = asked(None, part, ends)
        return future

    def _send(self, _: int, batch: PendingBatch) -> None:
        names: list[Any] = [waiting[1][0] for waiting in batch]  # type: ignore[index]
        if "bad" in names:
            raise ValueError("bytes must be in range(0, 256)")
        self.sent.append(names)
        if not self.silent:
            asyncio.get_running_loop().call_soon(self._answer, batch, names)

    def _answer(self, batch: PendingBatch, names: list[Any]) -> None:
        batch.since = asyncio.get_running_loop().time() - self.takes
        self.batcher.done(batch, answered=self.answered)
        for waiting, name in zip(batch, names, strict=True):
            waiting[0].set_result(name)


def in_a_loop(test: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(test(), SOON))


def test_a_request_that_cannot_be_packed_fails_alone() -> None:
    async def main() -> None:
        store = Store()
        for _ in range(5):  # More often than may be in flight.
            names = ["one", "bad", "two"]
            asked = [store.ask(FakePart(name)) for name in names]
            one, bad, two = await asyncio.gather(*asked, return_exceptions=True)
            assert (one, two) == ("one", "two")
            assert isinstance(bad, ValueError)

    in_a_loop(main)


def test_a_request_with_more_limits_than_a_batch_may_hold_is_refused_alone() -> None:
    async def main() -> None:
        store = Store()
        rules = tuple(str(number).encode() for number in range(MAX_RULES + 1))
        asked = [
            store.ask(FakePart("before")),
            store.ask(FakePart("huge", rules)),
            store.ask(FakePart("large", rules[1:])),
            store.ask(FakePart("after")),
        ]
        before, huge, large, after = await asyncio.gather(*asked, return_exceptions=True)
        assert (before, large, after) == ("before", "large", "after")
        assert isinstance(huge, UsageError)
        assert str(MAX_RULES) in str(huge)

    in_a_loop(main)


@pytest.mark.parametrize("queued", [False, True])
def test_a_caller_with_less_time_fails_at_its_own_deadline(queued: bool) -> None:  # noqa: FBT001
    """On the way and in the queue alike, and the others go on waiting."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        store = Store(max_in_flight=1)
        store.silent = True
        patient = store.ask(FakePart("patient"))
        if queued:
            await asyncio.sleep(0)
        hasty = store.ask(FakePart("hasty"), loop.time() + 0.05)
        with pytest.raises(EngineError):
            await hasty
        assert store.sent == [["patient"] if queued else ["patient", "hasty"]]
        assert not patient.done()

    in_a_loop(main)


def test_a_caller_behind_a_cancelled_one_fails_at_its_deadline() -> None:
    """Also if nobody waits for the call on its way any more, so that no timer runs for that."""

    async def main() -> None:
        store = Store(deadline=0.02, max_in_flight=1)
        store.silent = True
        with pytest.raises(EngineTimeout):
            await store.ask(FakePart("unanswered"))
        cancelled, behind = store.ask(FakePart("cancelled")), store.ask(FakePart("behind"))
        cancelled.cancel()
        with pytest.raises(EngineTimeout):
            await behind

    in_a_loop(main)


def test_a_link_is_given_up_only_when_it_had_time_to_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who came with little time left does not take the link from the others."""

    class Counted(Link):
        aborted = 0

        def abort(self) -> None:
            self.aborted += 1

    async def main() -> None:
        loop = asyncio.get_running_loop()
        silent, answering = Counted(("silent", 1)), Counted(("answering", 1))
        for link in (silent, answering):
            batch = PendingBatch()
            batch.mark_sent(link, loop.time())
            batch.give_up(0.2)
        assert (silent.aborted, answering.aborted) == (0, 0)
        answering._waiting.append(lambda _: None)
        answering.data_received(b"+OK\r\n")
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + 0.2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (silent.aborted, answering.aborted) == (1, 0)

    in_a_loop(main)


def plain(name: str) -> Any:
    """A request like nearly all; the store finds its name in the place of its key."""
    form = PlainTemplate(FixedWindow(1, 1_000_000), (b"rule",), ENGINE, None)
    return PlainRequest((name, name.encode(), form, None))


@pytest.fixture
def long_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link is taken to be open for longer than a busy machine needs for the next step of a test."""
    monkeypatch.setattr(batcher, "FRESH", 2 * SOON)


@pytest.mark.usefixtures("long_fresh")
def test_a_single_caller_that_asks_again_at_once_does_not_wait_for_the_tick() -> None:
    async def main() -> None:
        store = Store()
        await store.ask(plain("first"))
        store.silent = True
        store.ask(plain("at once"))
        assert store.sent == [["first"], ["at once"]]
        store.ask(plain("one"))
        store.ask(plain("two"))
        assert store.sent[2:] == []
        await asyncio.sleep(0)
        assert store.sent[2:] == [["one", "two"]]

    in_a_loop(main)


def test_a_later_request_waits_until_the_loop_has_checked_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        store = Store()
        await store.ask(plain("first"))
        later = store.ask(plain("later"))
        assert store.sent == [["first"]]
        await later

    monkeypatch.setattr(batcher, "FRESH", 0.0)
    in_a_loop(main)


@pytest.mark.usefixtures("long_fresh")
def test_a_request_after_an_unanswered_one_waits_for_the_tick() -> None:
    async def main() -> None:
        store = Store()
        store.answered = False
        await store.ask(plain("first"))
        again = store.ask(plain("again"))
        assert store.sent == [["first"]]
        await again

    in_a_loop(main)


@pytest.mark.usefixtures("long_fresh")
def test_after_a_batch_a_request_waits_for_the_tick() -> None:
    async def main() -> None:
        store = Store()
        one = store.ask(plain("one"))
        store.ask(plain("two"))
        await one
        again = store.ask(plain("again"))
        assert store.sent == [["one", "two"]]
        await again

    in_a_loop(main)


def test_a_full_batch_leaves_before_the_tick_ends() -> None:
    async def main() -> None:
        store = Store()
        store.silent = True
        for number in range(150):
            store.ask(plain(str(number)))
        assert [len(names) for names in store.sent] == [100]
        await asyncio.sleep(0)
        assert [len(names) for names in store.sent] == [100, 50]

    in_a_loop(main)


def test_timers_are_earlier_by_as_much_as_they_were_late_and_by_a_quarter_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock stands still; when a timer fires, it is as late as the loop was."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        store, timers = Store(deadline=20.0), []
        store.silent = True
        now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: now)

        def call_at(when: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
            timers.append((when, callback))
            return asyncio.TimerHandle(when, callback, (), loop)

        monkeypatch.setattr(loop, "call_at", call_at)
        early = 0.0
        for late, early_next in ((0.0, 0.0), (2.0, 2.0), (0.0, 1.8), (30.0, 5.0), (0.0, 4.5)):
            asked = store.ask(plain("a"))
            await asyncio.sleep(0)
            when, fire = timers[-1]
            assert when == pytest.approx(now + 20.0 - early)
            now, early = when + late, early_next
            fire()
            assert isinstance(asked.exception(), EngineTimeout)

    asyncio.run(main())  # Its time passes too fast for a time limit.


def test_a_link_is_given_up_also_if_its_callers_are_impatient() -> None:
    """They leave before the deadline, every time; a silent link would never be replaced."""

    class Watched(Link):
        aborted: asyncio.Event

        def abort(self) -> None:
            self.aborted.set()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        store, link = Store(deadline=0.1), Watched(("silent", 1))
        link.aborted = asyncio.Event()
        store.silent = True
        began = loop.time()
        asked = store.ask(plain("impatient"))
        await asyncio.sleep(0)
        (batch,) = store.batcher._sent.values()
        batch.mark_sent(link, began)
        asked.cancel()
        await link.aborted.wait()
        assert loop.time() - began >= 0.1
        assert store.batcher._timer is None

    in_a_loop(main)


def test_a_timer_that_was_late_under_a_long_deadline_leaves_time_under_a_short_one() -> None:
    """The first deadline is longer: connecting takes time. Its timers may have been later than all of the next one."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        store = Store(deadline=0.4)
        store.silent = True
        asked = store.ask(plain("first"))
        await asyncio.sleep(0.3)  # Until shortly before its deadline.
        time.sleep(0.2)  # noqa: ASYNC251 - as a program does that blocks its loop
        with pytest.raises(EngineTimeout):
            await asked
        store.batcher.use_deadline(0.04)
        began = loop.time()
        with pytest.raises(EngineTimeout):
            await store.ask(plain("second"))
        assert loop.time() - began > 0.02

    in_a_loop(main)


@pytest.mark.parametrize(
    "calls_took_s, queued",
    [
        ([4.0, 4.0, 4.0], 24),  # Eight every 4 s: those are sent after 12 s at most.
        ([4.0, 19.0, 19.0], 24),
        ([19.0, 19.0, 4.0], 24),
        ([11.0, 11.0, 11.0], 4),
        ([0.0, 19.0, 19.0], 10_000),
    ],
    ids=["slow", "slower twice", "slower before", "only one call in time", "all in flight slow"],
)
def test_a_request_that_could_not_be_answered_in_time_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, calls_took_s: list[float], queued: int
) -> None:
    async def main() -> None:
        store = Store(deadline=20.1, max_in_flight=2, max_batch=4)
        for store.takes in calls_took_s:
            await store.ask(plain("first"))
        store.silent = True
        asked = [store.ask(alike(str(number))) for number in range(8 + queued + 2)]
        refused = [future for future in asked if future.done()]
        assert [type(future.exception()) for future in refused] == [EngineBusy, EngineBusy]
        assert refused == asked[-2:]
        assert f"({queued} wait already)" in str(refused[0].exception())
        for future in asked:
            future.cancel()

    monkeypatch.setattr(batcher, "FRESH", 0.0)
    in_a_loop(main)


def test_requests_in_the_queue_are_refused_once_calls_turn_out_to_be_slow() -> None:
    """They came when calls were fast; those that were cancelled meanwhile are left alone."""

    async def main() -> None:
        store = Store(deadline=20.1, max_in_flight=1, max_batch=4)
        await asyncio.gather(*(store.ask(alike("fast")) for _ in range(2)))
        store.takes = 4.0
        asked = [store.ask(alike(str(number))) for number in range(40)]
        asked[-1].cancel()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        kinds = "".join("." if isinstance(one, str) else type(one).__name__[0] for one in outcomes)
        # Of two slow calls, of two that were on their way then, and of those that wait.
        assert kinds == (8 + 8 + 12) * "." + 11 * "E" + "C"
        assert isinstance(outcomes[28], EngineBusy)

    in_a_loop(main)


def test_the_queue_is_bounded_also_if_each_request_comes_in_a_tick_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        store = Store(max_in_flight=1, max_batch=4)
        store.silent = True
        asked = []
        for number in range(4 + 20 + 3):
            asked.append(store.ask(alike(str(number))))
            await asyncio.sleep(0)
        refused = [future for future in asked if future.done()]
        assert refused == asked[-len(refused) :]
        assert {type(future.exception()) for future in refused} == {EngineBusy}
        assert len(store.batcher) == 20
        for future in asked:
            future.cancel()

    monkeypatch.setattr(batcher, "MAX_QUEUED", 20)
    in_a_loop(main)


@pytest.mark.parametrize("asked, sent", [(31, [31]), (32, [16, 16]), (33, [17, 16])])
def test_few_requests_go_in_one_call_and_many_in_two_halves(asked: int, sent: list[int]) -> None:
    async def main() -> None:
        store = Store()
        store.silent = True
        for number in range(asked):
            store.ask(plain(str(number)))
        for _ in range(3):
            await asyncio.sleep(0)
        assert [len(names) for names in store.sent] == sent

    in_a_loop(main)


def test_plain_requests_and_others_go_in_separate_calls_in_their_order() -> None:
    async def main() -> None:
        store = Store()
        asked = [store.ask(plain(name) if name.islower() else FakePart(name)) for name in "abXcYdZ"]
        assert await asyncio.gather(*asked) == list("abXcYdZ")
        assert store.sent == [list("abcd"), list("XYZ")]

    in_a_loop(main)


ALIKE = PlainTemplate(FixedWindow(1, 1_000_000), (b"rule",), ENGINE, None)


def alike(name: str) -> Any:
    """A request of the same limit as all others of this kind."""
    return PlainRequest((name, name.encode(), ALIKE, None))


@pytest.mark.parametrize("cancelled", ["a", "c", "ad", "abcd"])
def test_requests_of_one_limit_are_sent_without_those_that_were_cancelled(cancelled: str) -> None:
    async def main() -> None:
        store = Store()
        asked = {name: store.ask(alike(name)) for name in "abcd"}
        for name in cancelled:
            asked[name].cancel()
        left = [name for name in asked if name not in cancelled]
        assert await asyncio.gather(*(asked[name] for name in left)) == left
        await asyncio.sleep(0)
        assert store.sent == ([left] if left else [])

    in_a_loop(main)


def test_requests_of_two_limits_are_sent_in_their_order() -> None:
    async def main() -> None:
        store = Store()
        asked = [store.ask((alike if name.islower() else plain)(name)) for name in "abXcYd"]
        assert await asyncio.gather(*asked) == list("abXcYd")
        assert store.sent == [list("abXcYd")]

    in_a_loop(main)


def test_a_deadline_counts_from_the_call_also_in_a_tick_that_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        store, begun = Store(max_in_flight=0), loop.time()
        passed = [0.0]
        monkeypatch.setattr(loop, "time", lambda: begun + passed[0])
        for passed[0] in (0.0, 0.1):
            store.ask(alike("a tick"))
        await asyncio.sleep(0)
        passed[0] = 0.2
        store.ask(alike("the next tick"))
        ends = [waiting[3] - begun for waiting in store.batcher._queue]
        assert ends == pytest.approx([SOON, SOON + 0.1, SOON + 0.2])

    in_a_loop(main)
