"""Identifier values in `overrides` and `exempt`: values that no request can have are refused.

A value is compared with the key of a request, which is normalised. `2001:db8::1` would never match, because IPv6
addresses are counted by /64; `rules check` reports it before a customer does.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING, Final

from ....errors import UsageError
from ...matching.addresses import address_of, group_of
from ...matching.normalized_request import host_of
from ...matching.paths import canonical_path
from ...matching.secrets import digest_of, is_digest, is_secret

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...model import Identifier, IdentifierPart


def require_value(identifier: Identifier, value: str) -> None:
    """Refuse a value that this identifier never has, and suggest the right one; raises `UsageError`.

    Only identifiers of one part are checked: a combined value cannot be taken apart.
    """
    if len(identifier.parts) > 1:
        return
    (part,) = identifier.parts
    if is_secret(part):
        if not is_digest(value):
            raise UsageError(
                f"this would put a secret into the rules; write its digest, {digest_of(value)}"
            )
        return
    spelled = _spelled(part, value)
    if spelled != value:
        raise UsageError(f"no request has the identifier {value!r}; write {spelled!r}")


def _spelled(part: IdentifierPart, value: str) -> str:
    """The normalised form of a value."""
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
        raise UsageError(f"{value!r} is not an address; write one such as 203.0.113.9") from None
    address = address_of(str(network.network_address))
    if address is not None and group_of(address, prefix) == str(network):
        return str(network)
    raise UsageError(
        f"{value!r} is a range, but requests are counted by address; "
        "write `ip_subnet` in a `match`: that of `exempt`, or of another rule"
    )


_SPELLINGS: Final[dict[str, Callable[[str], str]]] = {
    "host": lambda value: host_of(value) or "example.com",
    "method": lambda value: "GET" if value.upper() == "HEAD" else value.upper(),
    "path": canonical_path,
    "header": str.strip,
    "global": lambda _: "global",
}
