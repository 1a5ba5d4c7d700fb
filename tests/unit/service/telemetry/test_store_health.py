"""What counts as an outage of the store, and what is logged about it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headgate import AsyncLimiter
from headgate.errors import EngineBusy, EngineTimeout
from headgate.guards.stack import fallback_of
from headgate.service.telemetry import store_health
from headgate.service.telemetry.store_health import StoreHealth

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

GONE = EngineTimeout("no answer", transient=True)


class Store:
    """An engine that is probed, and fails if it is told to."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.breaker: Any = None
        """Of the limiter whose engine this is."""

    async def usage(self, *_: object) -> None:
        if self.error is not None:
            raise self.error


def watched(
    story: Callable[[Store, StoreHealth], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    at_first: Exception | None = None,
) -> None:
    """Run a story with a shared store that is probed all the time."""
    monkeypatch.setattr(store_health, "PROBE_EVERY", 0.001)

    async def main() -> None:
        limiter = AsyncLimiter("redis://127.0.0.1:1", on_error="fallback", nodes=1)
        guard: Any = fallback_of(limiter.engine)
        store, health = Store(), StoreHealth()
        store.error, store.breaker = at_first, guard.breaker
        monkeypatch.setattr(store_health, "fallback_of", lambda _: guard)
        engine: Any = store
        await health.start(engine, shared=True)
        await story(store, health)
        await health.stop()
        await limiter.aclose()

    asyncio.run(main())


async def probed(times: int = 3) -> None:
    for _ in range(times):
        await asyncio.sleep(0.002)  # Longer than the time between probes.


def test_a_request_that_was_not_sent_says_nothing() -> None:
    health = StoreHealth()
    health.failed(EngineBusy("10 requests already wait", transient=True))
    assert (health.up, health.outages, health.last_error) == (True, 0, "")


def test_calls_that_fail_now_and_then_are_no_outage(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(_: Store, health: StoreHealth) -> None:
        for _round in range(20):
            health.failed(GONE)
            await probed(1)
            assert health.up

    watched(story, monkeypatch)
    assert caplog.messages == []


def test_an_outage_is_known_at_once_when_the_breaker_is_open_which_has_logged_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(store: Store, health: StoreHealth) -> None:
        store.breaker.is_open, store.error = True, GONE
        health.failed(GONE)
        assert (health.up, health.outages, health.last_error) == (False, 1, "no answer")
        await probed()
        store.breaker.is_open, store.error = False, None
        await probed()
        assert (health.up, health.outages) == (True, 1)

    watched(story, monkeypatch)
    assert caplog.messages == []


def test_an_outage_that_only_probes_notice_is_logged_once_with_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(store: Store, health: StoreHealth) -> None:
        store.error = GONE
        await probed(10)
        assert (health.up, health.outages) == (False, 1)
        store.error = None
        await probed()
        assert health.up

    watched(story, monkeypatch)
    begun, ended = caplog.messages
    assert begun == "the store does not answer: no answer"
    assert ended.startswith("the store answers again, after 0.")


def test_a_store_that_does_not_answer_from_the_beginning_is_logged_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(_: Store, health: StoreHealth) -> None:
        assert not health.up
        assert caplog.messages == ["the store does not answer: no answer"]

    watched(story, monkeypatch, at_first=GONE)


def test_outages_that_follow_each_other_are_probed_once() -> None:
    """An engine that is not shared is probed during outages only; nothing is left of it in the end."""

    async def main() -> None:
        store, health = Store(), StoreHealth()
        engine: Any = store
        await health.start(engine)
        store.error = GONE
        for _round in range(5):
            health.failed(GONE)
            await asyncio.sleep(0)
            await asyncio.sleep(
                0
            )  # Until the probe that a single failure leads to has failed, too.
            assert not health.up
            health.answered()
        await health.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
