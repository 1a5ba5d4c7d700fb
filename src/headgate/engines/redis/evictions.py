"""Evictions: whether servers forget limits, because they may evict keys when their memory is full.

Pure: whoever is connected to a server passes on its reply to INFO. Changes are logged once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from .options import shown

if TYPE_CHECKING:
    import logging

    from .options import Address

LOOK_EVERY_S: Final = 10.0
"""How often an async engine looks at each server that it is connected to."""
QUIET_S: Final = 2 * round(LOOK_EVERY_S)
"""A server that has evicted nothing for this long has stopped evicting."""
SAFE_POLICY: Final = "noeviction"


class Server(NamedTuple):
    """What a server said when it was last looked at."""

    policy: str
    run_id: str
    """New each time it starts, when its counts begin anew."""
    evicted: int
    """How many keys it has evicted since it started."""
    evicting_until_s: int
    """Until when it counts as evicting, in seconds since it started."""


class Evictions:
    """What servers were seen to evict. May be shared by several event loops."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._servers: dict[Address, Server] = {}
        self.keys = 0
        """How many keys were evicted since the first look."""

    def note(self, address: Address, info: object) -> None:
        """Record a server's reply to INFO; an error means that INFO is not allowed."""
        if not isinstance(info, bytes):
            return
        lines = info.decode(errors="replace").splitlines()  # Paths in it may be in any encoding.
        facts = dict(line.split(":", 1) for line in lines if ":" in line)
        bounded = facts.get("maxmemory", "0") != "0"
        policy = facts.get("maxmemory_policy", SAFE_POLICY) if bounded else SAFE_POLICY
        run_id, evicted = facts.get("run_id", ""), int(facts.get("evicted_keys", "0"))
        known = self._servers.get(address)
        if policy not in (SAFE_POLICY, known and known.policy):
            self._log.warning(
                "redis at %s may evict keys (maxmemory-policy is %s): limits would be forgotten under memory "
                "pressure; set maxmemory-policy noeviction",
                shown(address),
                policy,
            )
        if known is None:
            self._servers[address] = Server(policy, run_id, evicted, 0)
            return
        before, until_s = (
            (known.evicted, known.evicting_until_s) if run_id == known.run_id else (0, 0)
        )
        now_s = int(facts.get("uptime_in_seconds", "0"))
        if evicted > before:
            self._count(address, evicted - before, is_news=now_s >= until_s)
            until_s = now_s + QUIET_S
        # Replies to several event loops may arrive in another order than they were sent in.
        self._servers[address] = Server(policy, run_id, max(evicted, before), until_s)

    def _count(self, address: Address, more: int, *, is_news: bool) -> None:
        self.keys += more
        if is_news:
            words = "redis at %s evicts keys, %d of them lately: limits are being forgotten; give it more memory"
            self._log.error(words, shown(address), more)
