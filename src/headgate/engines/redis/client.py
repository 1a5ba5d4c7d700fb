"""A ready redis-py client in the place of a URL: its settings are taken over, its connections are not.

A client retries, pools and decodes as it was told to; a limiter must know exactly what was sent and how often. So the address,
the credentials and TLS are read off the client, and the engine makes connections of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import UsageError
from .options import Options

if TYPE_CHECKING:
    import ssl

    from .options import Address


def options_of(client: Any) -> Options:
    """Where a client connects to, and as whom."""
    if hasattr(client, "nodes_manager"):
        manager = client.nodes_manager
        kwargs = manager.connection_kwargs
        nodes = tuple((node.host, int(node.port)) for node in manager.startup_nodes.values())
        return _options("cluster", nodes, kwargs)
    pool = client.connection_pool
    kwargs = pool.connection_kwargs
    if hasattr(pool, "sentinel_manager"):
        sentinels = [
            one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels
        ]
        addresses = tuple((one["host"], int(one["port"])) for one in sentinels)
        password = sentinels[0].get("password") or ""
        return _options(
            "sentinel", addresses, kwargs, master=pool.service_name, sentinel_password=password
        )
    if kwargs.get("path"):
        return _options("standalone", ((kwargs["path"], 0),), kwargs)
    address: Address = (kwargs.get("host", "localhost"), int(kwargs.get("port", 6379)))
    return _options("standalone", (address,), kwargs)


def _options(topology: Any, addresses: tuple[Address, ...], kwargs: Any, **more: Any) -> Options:
    if kwargs.get("credential_provider") is not None:
        raise UsageError("a client with a credential provider cannot be taken over; use a URL")
    return Options(
        topology,
        addresses,
        username=kwargs.get("username") or "",
        password=kwargs.get("password") or "",
        db=int(kwargs.get("db") or 0),
        tls=_tls(kwargs),
        **more,
    )


def _tls(kwargs: Any) -> ssl.SSLContext | None:
    import ssl  # noqa: PLC0415 - most clients have no TLS

    wanted = any(name.startswith("ssl") for name in kwargs) and kwargs.get("ssl", True)
    if not wanted:
        return None
    context = ssl.create_default_context(cafile=kwargs.get("ssl_ca_certs"))
    if kwargs.get("ssl_certfile"):
        context.load_cert_chain(kwargs["ssl_certfile"], kwargs.get("ssl_keyfile"))
    if kwargs.get("ssl_cert_reqs") in ("none", ssl.CERT_NONE):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif kwargs.get("ssl_check_hostname") is False:
        context.check_hostname = False
    return context
