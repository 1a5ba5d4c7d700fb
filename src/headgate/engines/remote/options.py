"""The URL of nodes: `headgate://:TOKEN@node1:7000,node2:7000?deadline=1.5`, `headgates://` with TLS.

The token is for nodes whose checks need one. All nodes in a URL must share their counts, as nodes on one Redis do: any
of them may be called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from ..._query import read_query, whole_between
from ...errors import ConfigError
from ..redis.options import QUERY_OPTIONS, Options, tls_context
from .calls import MAX_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..redis.options import Address

SCHEMES: Final = ("headgate", "headgates")
DEADLINE: Final = 1.5
"""Seconds; longer than the deadline of the node's own store, so that the node can report the outcome."""
_NAMES: Final = (
    "deadline", "connect_timeout", "max_connections", "max_in_flight", "deny_cache",
    "ca_file", "cert_file", "key_file",
)  # fmt: skip
_OPTIONS: Final[dict[str, Callable[[str], Any]]] = {
    **{name: QUERY_OPTIONS[name] for name in _NAMES},
    "max_batch": whole_between(1, MAX_NAMES),
}


def parse_url(url: str) -> Options:
    """Read a URL; every mistake is a `ConfigError` that does not repeat the token."""
    try:
        parts = urlsplit(url)
    except ValueError:  # Its message quotes the URL.
        raise ConfigError("the URL is invalid; check the brackets of its address") from None
    if parts.scheme not in SCHEMES:
        raise ConfigError(
            f"the URL of nodes must begin with headgate:// or headgates://, not {parts.scheme!r}"
        )
    if parts.path.strip("/") or parts.fragment or "@" in parts.path + parts.query:
        raise ConfigError(
            "a URL of nodes is headgate://:TOKEN@host:port,host:port; in a token write / as %2F, @ as %40"
        )
    userinfo, _, hosts = parts.netloc.rpartition("@")
    username, _, token = userinfo.partition(":")
    options = read_query(parts.query, _OPTIONS)
    secure = parts.scheme == "headgates"
    return Options(
        "nodes",
        tuple(_address(host) for host in hosts.split(",")),
        username=unquote(username),
        password=unquote(token),
        tls=tls_context(options, secure=secure, scheme="headgates"),
        **{"deadline": DEADLINE, "decision_deadline": options.get("deadline"), **options},
    )


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    # The text is not repeated: a token that was not escaped may have ended up there.
    if not host or not (port.isascii() and port.isdigit() and 0 < len(port) < 6):
        raise ConfigError("each node of the URL needs a port: headgate://host:port")
    if not 0 < int(port) < 65_536:
        raise ConfigError("a port in a URL must be a number from 1 to 65535")
    return host, int(port)
