"""Client addresses: normal form, the group they are counted as, and which proxies to trust.

`::ffff:203.0.113.9` is `203.0.113.9`. IPv6 addresses are counted by /64, because every customer has at least 2**64 of
them and may use a new one for each request. A NAT64 address is counted as the IPv4 address in it, a 6to4 address by
the /48 that belongs to its IPv4 address. `X-Forwarded-For` is read from the right, hop by hop, to the first that is
not trusted.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..model import Network

MAX_TEXT: Final = 96
"""The longest address with brackets, a zone and a port is shorter."""
MAX_FORWARDED: Final = 4_096
MAX_HOPS: Final = 32
NAT64: Final = IPv6Network("64:ff9b::/96")
"""Where the whole of IPv4 is seen from networks that have none (RFC 6052)."""


class Address(NamedTuple):
    """A client's address."""

    version: int
    number: int
    text: str
    """The one spelling."""
    group: str
    """Whom it is counted for: itself, or the range that one customer has."""


def address_of(text: str | None) -> Address | None:
    """Read an address; `None` for what is none.

    Brackets, a zone and a port are left out: `[fe80::1%eth0]:443` is `fe80::1`.
    """
    return None if not text or len(text) > MAX_TEXT else _address_of(text)


@lru_cache(maxsize=65_536)
def _address_of(text: str) -> Address | None:
    bare, _, zone = _without_port(text.strip()).partition("%")
    if zone and ":" not in bare:
        return None
    try:
        address: IPv4Address | IPv6Address = ip_address(bare)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    number = int(address)
    if isinstance(address, IPv4Address):
        return Address(4, number, str(address), str(address))
    return Address(6, number, str(address), _group_of(address, 64))


def _group_of(address: IPv6Address, prefix: int) -> str:
    """Whom an address of IPv6 is counted for."""
    if address in NAT64:
        return str(IPv4Address(int(address) & 0xFFFF_FFFF))
    shared = min(prefix, 48) if address.sixtofour is not None else prefix
    return str(IPv6Network((address, shared), strict=False))


def group_of(address: Address, prefix: int) -> str:
    """Whom an address is counted for by a rule that looks at wider ranges of IPv6 than the /64."""
    return address.group if address.version == 4 else _wide_group(address.number, prefix)


@lru_cache(maxsize=65_536)
def _wide_group(number: int, prefix: int) -> str:
    return _group_of(IPv6Address(number), prefix)


def _without_port(text: str) -> str:
    """The address alone, of `192.0.2.1:80`, `[2001:db8::1]:443` and the like; no address if the rest is no port."""
    if text.startswith("["):
        bare, closed, port = text[1:].partition("]")
        return bare if closed and ":" in bare and (not port or _is_port(port)) else ""
    bare, colon, port = text.partition(":")
    return bare if colon and "." in bare and _is_port(f":{port}") else text


def _is_port(text: str) -> bool:
    return text[:1] == ":" and text[1:].isascii() and text[1:].isdigit() and len(text) <= 6


def contains(networks: Iterable[Network], address: Address) -> bool:
    """Whether an address lies in one of these ranges."""
    return any(
        network.version == address.version
        and (address.number & int(network.netmask)) == int(network.network_address)
        for network in networks
    )


def client_address(
    peer: str | None, forwarded_for: str | Sequence[str], trusted_proxies: Sequence[Network]
) -> str | None:
    """Whose request it is: the peer, or whom trusted proxies say it came from.

    `forwarded_for` is `X-Forwarded-For` as it came, repeated headers in order. It is read from the right, at most 32
    hops and 4 KB of it: every proxy appends whom it heard from, so a hop is true if the one after it is trusted. The
    first that is not trusted is the client. What is no address ends the walk at the proxy that wrote it.
    """
    current = address_of(peer)
    if current is None or not trusted_proxies:
        return None if current is None else current.text
    for hop in _hops(forwarded_for):
        if not contains(trusted_proxies, current):
            break
        said = address_of(hop.strip())
        if said is None:
            break
        current = said
    return current.text


def _hops(forwarded_for: str | Sequence[str]) -> list[str]:
    """The hops from the right; what was cut in two by a limit reads as no address."""
    text = forwarded_for if isinstance(forwarded_for, str) else ",".join(forwarded_for)
    if len(text) > MAX_FORWARDED:
        text = "cut" + text[-MAX_FORWARDED:]
    hops = text.rsplit(",", MAX_HOPS)
    if len(hops) > MAX_HOPS:
        hops[0] = ""
    return hops[::-1]
