"""Identifier values as `overrides` and `exempt` write them: those that no request could have are refused.

A value is compared with what a request is counted for, and that has one spelling. `2001:db8::1` would never be met, because
an address of IPv6 is counted as its /64; it is better to hear so from `rules check` than from the customer.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING, Final

from ...errors import UsageError
from ..addresses import address_of, group_of
from ..facts import host_of
from ..paths import canonical_path
from ..secrets import digest_of, is_digest, is_secret

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model import Identifier, Part


def require_value(identifier: Identifier, value: str) -> None:
    """Refuse a value that this identifier never has, and say which it would have; raises `UsageError`.

    Only an identifier of one part is looked at: which values several make together is not seen from one text.
    """
    if len(identifier.parts) > 1:
        return
    (part,) = identifier.parts
    if is_secret(part):
        if not is_digest(value):
            raise UsageError(
                f"a secret would lie in the rules; write its digest, {digest_of(value)}"
            )
        return
    spelled = _spelled(part, value)
    if spelled != value:
        raise UsageError(f"no request is counted for {value!r}; write {spelled!r}")


def _spelled(part: Part, value: str) -> str:
    """The one spelling of a value."""
    if part.kind == "path" and part.name:
        return canonical_path("/" + value.replace("/", ""))[1:]
    if part.kind == "ip_address":
        return _address(value, int(part.name or 64))
    spell = _SPELLINGS.get(part.kind)
    return value if spell is None else spell(value)


def _address(value: str, prefix: int) -> str:
    address = address_of(value)
    if address is not None:
        return group_of(address, prefix)
    try:
        network = ip_network(value)
    except ValueError:
        raise UsageError(f"{value!r} is no address; write one such as 203.0.113.9") from None
    address = address_of(str(network.network_address))
    if address is not None and group_of(address, prefix) == str(network):
        return str(network)
    raise UsageError(
        f"{value!r} is a range, and requests are counted for addresses; "
        "write `ip_subnet` in a `match`: that of `exempt`, or of another rule"
    )


_SPELLINGS: Final[dict[str, Callable[[str], str]]] = {
    "host": lambda value: host_of(value) or "example.com",
    "method": lambda value: "GET" if value.upper() == "HEAD" else value.upper(),
    "path": canonical_path,
    "header": str.strip,
    "global": lambda _: "global",
}
