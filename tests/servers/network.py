"""A network of its own for what a test starts: the loopback device of a new namespace, in which packets can be dropped.

It takes root, and Linux. The namespace holds for the thread that enters it and for all processes and threads that this
one starts; connections to servers outside are not possible from there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from tests.servers.process import HOST, NotInstalledError

if TYPE_CHECKING:
    from collections.abc import Iterator

CLONE_NEWNET = 0x40000000
_LOCAL, _FIRST = 100, 10
"""Where the rule is that finds local addresses, and the first of those that come before it."""


class Network:
    """The network inside."""

    def __init__(self) -> None:
        self._rules = 0

    def cut(self, source: str, port: int) -> None:
        """Drop what goes from this address to a port, and what comes back; nobody is told."""
        for words in (("from", source, "ipproto", "tcp", "dport", str(port)),
                      ("to", source, "ipproto", "tcp", "sport", str(port))):  # fmt: skip
            _ip("rule", "add", "pref", str(_FIRST + self._rules), *words, "blackhole")
            self._rules += 1

    def mend(self) -> None:
        """Let everything through again."""
        while self._rules:
            self._rules -= 1
            _ip("rule", "del", "pref", str(_FIRST + self._rules))


@contextlib.contextmanager
def own_network() -> Iterator[Network]:
    """Enter a network of its own; what is started in there must be ended in there."""
    if os.geteuid() or shutil.which("ip") is None:
        raise NotInstalledError(
            "a network of its own takes root and `ip`: apt-get install iproute2"
        )
    libc = ctypes.CDLL(None, use_errno=True)
    outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _require(libc.unshare(CLONE_NEWNET))
        try:
            _ip("link", "set", "lo", "up")
            _ip("rule", "add", "pref", str(_LOCAL), "lookup", "local")
            _ip("rule", "del", "pref", "0")
            yield Network()
        finally:
            _require(libc.setns(outside, CLONE_NEWNET))
    finally:
        os.close(outside)


def _require(outcome: int) -> None:
    if outcome:
        raise NotInstalledError(
            f"a network of its own cannot be made: {os.strerror(ctypes.get_errno())}"
        )


def _ip(*words: str) -> None:
    path = shutil.which("ip")
    assert path is not None
    subprocess.run([path, *words], check=True, capture_output=True)


OTHER_SIDE = "127.0.0.2"
"""Where servers on the other side of a split connect from; clients connect from `HOST`."""
assert OTHER_SIDE != HOST
