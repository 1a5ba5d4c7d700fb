"""Hosts: loopback addresses, and this machine's host names.

Used for both questions: where to listen without tokens, and which `Host` headers to accept.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`.

    >>> is_loopback("LOCALHOST"), is_loopback("::1"), is_loopback("[::1]"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare(host)).is_loopback
    except ValueError:
        return False


def is_everywhere(host: str) -> bool:
    """Whether `host` stands for all addresses of this machine, and so cannot be announced to others.

    >>> is_everywhere("0.0.0.0"), is_everywhere("[::]"), is_everywhere("10.0.0.1"), is_everywhere("example")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(bare(host)).is_unspecified
    except ValueError:
        return False


def bare(host: str) -> str:
    """An address in the system's notation: IPv6 is often written in brackets."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def open_to_everybody(host: str) -> str:
    """What is wrong with listening there without tokens."""
    return (
        f"{host} is reachable from other machines, and management would be open to everyone; create a token with "
        "'headgate token create' and set 'tokens' to its file, or listen on 127.0.0.1"
    )


def hosts_for(host: str, allowed: Iterable[str] = ()) -> frozenset[str] | None:
    """The names accepted in `Host`: on loopback this machine's, and those in `allowed`.

    Elsewhere any, unless some are named.
    """
    named = frozenset(one.lower() for one in allowed)
    if not is_loopback(host):
        return named or None
    own = f"[{bare(host)}]" if ":" in host else host.lower()
    return LOCAL_NAMES | {own} | named
