"""Mistakes in a limiter's setup, found by inspecting the first requests.

Each is logged once, with a code that docs/reference/checks.md explains. After the first requests nothing is looked at
any more, so it costs nothing.
"""

from __future__ import annotations

import logging
import os
import re
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from ..rules.matching.addresses import address_of

log: Final = logging.getLogger("headgate")

LOOKS: Final = 100
"""How many requests are looked at."""
SERVERS: Final = ("gunicorn", "uvicorn", "hypercorn", "granian")


class SetupWatch:
    """Looks at the first requests of an app."""

    def __init__(self, *, shared: bool) -> None:
        self.left = LOOKS
        self._shared = shared
        self._warned: set[str] = set()

    def look(self, peer: str | None, *, forwarded: bool, trusts_proxies: bool) -> None:
        """Look at one request: where it came from, and whether it brought `X-Forwarded-For`."""
        if not self._shared and self.left in {1, LOOKS} and several_workers():
            self._warn_once(
                "W001",
                "counts are kept in memory and there are several worker processes, so clients get the limit of each; "
                "name a store that workers share, such as redis://localhost",
            )
        self.left -= 1
        if not forwarded or trusts_proxies:
            return
        address = address_of(peer)
        if address is None:
            return  # A Unix socket; `Clients` tells of it.
        if not ip_address(address.text).is_global:
            self._warn_once(
                "W002",
                f"requests come through a proxy at {peer}, so all clients share one count; "
                f"pass trusted_proxies=['{peer}']",
            )
        else:
            self._warn_once(
                "W003",
                f"{peer} sent X-Forwarded-For, which is ignored because no proxy is trusted; "
                "if it is your proxy, add it to trusted_proxies",
            )

    def _warn_once(self, code: str, message: str) -> None:
        if code not in self._warned:
            self._warned.add(code)
            log.warning("headgate.%s: %s", code, message)


def warn_if_counted_twice(app: object, middleware: type, counts: object) -> None:
    """Warn if `app` has the same middleware inside already, with the same counts."""
    inside: object = app
    while inside is not None:
        if isinstance(inside, middleware) and getattr(inside, "counts", None) == counts:
            log.warning(
                "headgate.W005: %s is installed twice with the same limit, so every request counts twice; remove one",
                middleware.__name__,
            )
            return
        inside = getattr(inside, "app", None)


def several_workers() -> bool:
    """Whether this is one of several workers of a server, as far as the environment and Linux tell."""
    told = os.environ.get("WEB_CONCURRENCY", "")
    if told.isdecimal() and int(told) > 1:
        return True
    parent = os.getppid()
    if not any(server in _command(parent) for server in SERVERS):
        return False
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return False
    own = _command(os.getpid())
    return sum(_command(int(child)) == own for child in children) > 1


def _command(pid: int) -> str:
    """The command line of a process, with no digits: workers differ in those of their pipes only."""
    try:
        return re.sub(r"\d+", "", Path(f"/proc/{pid}/cmdline").read_text())
    except (OSError, UnicodeDecodeError):
        return ""
