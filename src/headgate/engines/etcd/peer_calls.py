"""What other nodes may call on this one: packed calls, in the same form as from clients, looks, and the time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..remote.serving import PackedCalls, Served, tried, when_done
from .options import CLOCK, LOOK

if TYPE_CHECKING:
    from ..remote.serving import Handler
    from .aio import AsyncEtcdEngine


def peer_handler(engine: AsyncEtcdEngine) -> Handler:
    """Answers `HG.PEER`, given the words after it."""
    local = engine.for_peers()
    calls, looks = PackedCalls(Served(local)), PackedCalls(_LookedAt(local))

    def answer(words: list[bytes]) -> Any:
        if words[:1] == [CLOCK]:
            return [engine.clock.now_us()]
        return looks.call([b"decide", *words[1:]]) if words[:1] == [LOOK] else calls.call(words)

    return answer


class _LookedAt(Served):
    """A node whose requests are only looked at, not carried out."""

    engine: AsyncEtcdEngine

    def decide(self, requests: list[Any]) -> Any:
        """See `ServedEngine.decide`."""
        return when_done([tried(self.engine.look, request) for request in requests])
