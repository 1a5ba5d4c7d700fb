"""What the two shells have in common: where the servers are, and in whose words they speak."""

from __future__ import annotations

import copy
import logging
from typing import TYPE_CHECKING

from ...clock import SystemClock
from .codec import Codec
from .failures import Answered, NotSent, Unanswered
from .keys import KeyCodec
from .operations import Operations
from .options import Options, parse_url
from .scripts import Dialect
from .topology import topology_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from ...clock import Clock


class Shell:
    """An engine without its I/O.

    `url` is a URL or `Options`. With a `clock` of your own, tests decide what time it is; otherwise the server does.
    `colocate` says which keys belong together on Cluster: those for which it returns the same text share a slot.
    `logger` is told about a server that may forget limits; without one it is "headgate".
    """

    def __init__(
        self,
        url: str | Options,
        *,
        clock: Clock | None = None,
        colocate: Callable[[str], str] | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        self.options = parse_url(url) if isinstance(url, str) else url
        self.clock: Clock = SystemClock() if clock is None else clock
        self._test_clock = clock is not None
        self._topology = topology_of(self.options)
        self._colocate = colocate
        self._log = logging.getLogger("headgate") if logger is None else logger
        self._dialect = Dialect()
        self._speak_for("")

    def scoped(self, namespace: str) -> Self:
        """The same connections, under another namespace."""
        twin = copy.copy(self)
        twin._speak_for(namespace)
        return twin

    def _require_found(self, slot: int, reason: Exception | None) -> None:
        """Raise why nobody is known for a slot after a search that ended like this."""
        if isinstance(reason, Unanswered):  # A question of the search; what is to be sent was not.
            raise NotSent(str(reason)) from reason
        if reason is not None:
            raise reason
        if self._topology.address(slot) is None:
            raise Answered(f"no server of the Cluster has the slot {slot}")

    def _speak_for(self, namespace: str) -> None:
        options = self.options
        keys = KeyCodec(
            namespace, self._topology.clustered, options.secret, options.hash_keys, self._colocate
        )
        codec = Codec(
            keys, self.clock.now_us, test_clock=self._test_clock, receipts=options.receipts
        )
        self._operations = Operations(codec, options.max_batch, self._dialect)
