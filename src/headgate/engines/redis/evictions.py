"""Evictions: whether servers forget limits, because they may evict keys when their memory is full.

Pure: whoever is connected to a server passes on its reply to INFO. Changes are logged once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .options import shown

if TYPE_CHECKING:
    import logging

    from .options import Address

LOOK_EVERY_S: Final = 10.0
"""How often an async engine looks at each server that it is connected to."""
SAFE_POLICY: Final = "noeviction"


class Evictions:
    """What servers were seen to evict. May be shared by several event loops."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._policies: dict[Address, str] = {}
        self._evicted: dict[Address, int] = {}
        self._evicting: set[Address] = set()
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
        if policy not in (SAFE_POLICY, self._policies.get(address)):
            self._log.warning(
                "redis at %s may evict keys (maxmemory-policy is %s): limits would be forgotten under memory "
                "pressure; set maxmemory-policy noeviction",
                shown(address),
                policy,
            )
        self._policies[address] = policy
        self._count(address, int(facts.get("evicted_keys", "0")))

    def _count(self, address: Address, evicted: int) -> None:
        """`evicted` is the server's own count, which begins anew when it restarts."""
        more = evicted - self._evicted.get(address, evicted)
        self._evicted[address] = evicted
        if more <= 0:
            self._evicting.discard(address)
            return
        self.keys += more
        if address not in self._evicting:
            self._evicting.add(address)
            words = "redis at %s evicts keys, %d of them lately: limits are being forgotten; give it more memory"
            self._log.error(words, shown(address), more)
