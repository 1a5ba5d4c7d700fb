"""A request as rules see it, from the caller's description.

`/decide` and `/api/explain` share this, so that they interpret a request in the same way.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING

from ...rules.matching.addresses import client_address
from ...rules.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .bodies import DecideBody


def incoming_from(trusted_proxies: Iterable[str]) -> Callable[[DecideBody], Request]:
    """A function that converts bodies into requests. The address is the client's, as reported by trusted proxies."""
    proxies = tuple(map(ip_network, trusted_proxies))

    def incoming(asked: DecideBody) -> Request:
        address = asked.ip
        if proxies and address is not None:
            forwarded = [
                value for name, value in asked.headers.items() if name.lower() == "x-forwarded-for"
            ]
            address = client_address(address, forwarded, proxies) or address
        return Request(
            asked.method,
            asked.path,
            address,
            asked.user_id,
            asked.api_key,
            asked.host,
            asked.headers,
            tuple(asked.descriptors),
            asked.cost,
        )

    return incoming
