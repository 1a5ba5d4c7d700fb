"""Address ranges, as parsed by `ipaddress`, and suggestions for those that it refuses."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, NoReturn

from ....errors import UsageError

if TYPE_CHECKING:
    from ...model import Network

EXAMPLE = "write a range such as 203.0.113.0/24 or 2001:db8::/32"


@lru_cache(maxsize=16_384)
def network_of(text: str) -> Network:
    """Parse a range in CIDR notation, or a single address; raises `UsageError` with what to write instead.

    >>> network_of("203.0.113.7/24")
    Traceback (most recent call last):
    headgate.errors.UsageError: '203.0.113.7/24' has bits behind its prefix; write 203.0.113.0/24, or 203.0.113.7 alone
    """
    if "%" in text:
        bare = text.partition("%")[0] + "".join(text.partition("/")[1:])
        _refuse(text, "has a zone, which is only valid on one machine", f"write {bare}")
    try:
        network = ip_network(text)
    except ValueError:
        _explain(text)
    mapped = _mapped(network)
    if mapped is not None:
        _refuse(text, "is an IPv4-mapped IPv6 range", f"write {mapped}")
    return network


def _explain(text: str) -> NoReturn:
    """Raise the reason why a range was refused."""
    address, slash, prefix = text.partition("/")
    corrected = ".".join(_without_zeros(part) for part in address.split("."))
    if corrected != address and _is_network(f"{corrected}{slash}{prefix}", strict=False):
        _refuse(
            text,
            "has leading zeros, which some programs read as octal",
            f"write {corrected}{slash}{prefix}",
        )
    if not _is_address(address):
        parts = address.split(".")
        if 1 < len(parts) < 4 and all(part.isdigit() for part in parts):
            _refuse(text, "is not a full address", "write all four numbers")
        _refuse(text, "is not a range of addresses", EXAMPLE)
    if _is_network(text, strict=False):
        network = ip_network(text, strict=False)
        _refuse(text, "has bits behind its prefix", f"write {network}, or {address} alone")
    longest = ip_address(address).max_prefixlen
    _refuse(
        text,
        f"has no prefix from 0 to {longest}",
        f"write {address}/{longest}, or a shorter prefix",
    )


def _mapped(network: Network) -> IPv4Network | None:
    """`::ffff:192.0.2.0/120` is `192.0.2.0/24`. Addresses of requests are always in the short form."""
    if not isinstance(network, IPv6Network) or network.prefixlen < 96:
        return None
    first = network.network_address.ipv4_mapped
    return None if first is None else IPv4Network((int(first), network.prefixlen - 96))


def _without_zeros(part: str) -> str:
    return part.lstrip("0") or "0" if part.isdigit() else part


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _is_network(text: str, *, strict: bool) -> bool:
    try:
        ip_network(text, strict=strict)
    except ValueError:
        return False
    return True


def _refuse(text: str, what: str, remedy: str) -> NoReturn:
    raise UsageError(f"{text!r} {what}; {remedy}")
