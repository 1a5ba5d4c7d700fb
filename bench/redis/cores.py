"""A server on one core, this process on another, as they would be on two machines."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.servers.redis import standalone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.redis import RedisServer

FLAVOUR = "redis-7.0"
SERVER_CORE, OUR_CORE = 0, 1


@contextmanager
def server_on_its_own_core() -> Iterator[RedisServer]:
    """A fresh server; where there are not two cores to choose from, nobody is pinned."""
    with standalone(FLAVOUR) as server:
        before = os.sched_getaffinity(0)
        if {SERVER_CORE, OUR_CORE} <= before:
            os.sched_setaffinity(server.pid, {SERVER_CORE})
            os.sched_setaffinity(0, {OUR_CORE})
        try:
            yield server
        finally:
            os.sched_setaffinity(0, before)
