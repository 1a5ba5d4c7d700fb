"""The blocking etcd engine: the async one, in the event loop of a background thread."""

from __future__ import annotations

import asyncio
import copy
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from ...decision import Decision
from .aio import AsyncEtcdEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Self

    from ...algorithms import Limit
    from ...charge import ChargeSet
    from ...clock import Clock
    from ..base import EngineDescription, Hit, KeyPage, Usage
    from .options import EtcdOptions

T = TypeVar("T")


class EtcdEngine:
    """Stores states on etcd, with this process as one of the nodes."""

    blocking = True

    def __init__(self, url: str | EtcdOptions, *, clock: Clock | None = None) -> None:
        self._engine = AsyncEtcdEngine(url, clock=clock)
        self.clock: Clock = self._engine.clock
        self._thread = _LoopThread()

    def scoped(self, namespace: str) -> Self:
        """The same node, under another namespace."""
        twin = copy.copy(self)
        twin._engine = self._engine.scoped(namespace)
        return twin

    @property
    def unguarded(self) -> Self:
        """See `Engine.unguarded`."""
        return self

    def describe(self) -> EngineDescription:
        """See `Engine.describe`."""
        return self._engine.describe()

    def bind(self, limit: Limit, rule: str | None = None) -> Hit:
        """A function that takes units of `limit` for a key."""
        bound = self._engine.bind(limit, rule)

        async def asked(key: str, cost: int) -> Decision:
            answer = bound(key, cost)
            return answer if isinstance(answer, Decision) else await answer

        return lambda key, cost: self._thread.run(asked(key, cost))

    def bind_run(self, limit: Limit, rule: str | None = None) -> None:
        """Not supported: see `Engine.bind_run`."""

    def decide(self, requests: Sequence[ChargeSet]) -> list[Decision]:
        """See `Engine.decide`."""
        return self._thread.run(self._engine.decide(requests))

    def settle(self, token: str, actual: int | Sequence[int]) -> bool:
        """See `Engine.settle`."""
        return self._thread.run(self._engine.settle(token, actual))

    def withdraw(self, request: ChargeSet) -> None:
        """See `Engine.withdraw`."""
        self._thread.run(self._engine.withdraw(request))

    def leave_line(self, decision: Decision) -> None:
        """See `Engine.leave_line`."""
        self._thread.run(self._engine.leave_line(decision))

    def renew(self, key: str, limit: Limit, token: str, rule: str | None = None) -> bool:
        """See `Engine.renew`."""
        return self._thread.run(self._engine.renew(key, limit, token, rule))

    def release(self, key: str, limit: Limit, token: str, rule: str | None = None) -> None:
        """See `Engine.release`."""
        self._thread.run(self._engine.release(key, limit, token, rule))

    def usage(self, key: str, limit: Limit, rule: str | None = None) -> Usage:
        """See `Engine.usage`."""
        return self._thread.run(self._engine.usage(key, limit, rule))

    def reset(self, key: str, limit: Limit, rule: str | None = None) -> None:
        """See `Engine.reset`."""
        self._thread.run(self._engine.reset(key, limit, rule))

    def list_keys(self, prefix: str = "", cursor: str = "", limit: int = 100) -> KeyPage:
        """See `Engine.list_keys`."""
        return self._thread.run(self._engine.list_keys(prefix, cursor, limit))

    def close(self) -> None:
        """Hand over this node's shards, and leave the cluster."""
        self._thread.stop(self._engine.aclose)


class _LoopThread:
    """A thread with an event loop, started on first use."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it; if the caller is interrupted, it is cancelled."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="headgate-etcd", daemon=True
                )
                self._thread.start()
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run one last coroutine, and end the thread."""
        if self._thread is not None:
            self.run(last())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._thread = None
        if not self._loop.is_closed():
            self._loop.close()
