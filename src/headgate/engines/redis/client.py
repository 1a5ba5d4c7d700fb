"""A ready redis-py client in the place of a URL: its settings are taken over, its connections are not.

A client retries, pools and decodes as it was told to; a limiter must know exactly what was sent and how often. So the address,
the credentials and TLS are read off the client, and the engine makes connections of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ...errors import UsageError
from .options import Options

if TYPE_CHECKING:
    import ssl

    from .options import Address


TLS_SETTINGS: Final = frozenset(
    f"ssl_{name}"
    for name in (
        "ca_certs",
        "ca_path",
        "ca_data",
        "certfile",
        "keyfile",
        "password",
        "cert_reqs",
        "check_hostname",
        "min_version",
        "ciphers",
    )
)
"""What redis-py can be told about TLS, and is understood here."""


def options_of(client: Any) -> Options:
    """Where a client or its pool connects to, and as whom."""
    if hasattr(client, "nodes_manager"):
        manager = client.nodes_manager
        kwargs = manager.connection_kwargs
        nodes = tuple((node.host, int(node.port)) for node in manager.startup_nodes.values())
        secure = kwargs.get("ssl") or _speaks_tls(kwargs.get("connection_class", object))
        return _options("cluster", nodes, kwargs, secure=secure)
    pool = getattr(client, "connection_pool", client)
    kwargs = pool.connection_kwargs
    secure = _speaks_tls(pool.connection_class)
    if hasattr(pool, "sentinel_manager"):
        sentinels = [
            one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels
        ]
        addresses = tuple((one["host"], int(one["port"])) for one in sentinels)
        password = sentinels[0].get("password") or ""
        return _options(
            "sentinel",
            addresses,
            kwargs,
            secure=secure,
            master=pool.service_name,
            sentinel_password=password,
        )
    address: Address = (kwargs.get("host", "localhost"), int(kwargs.get("port", 6379)))
    if kwargs.get("path"):
        address = (kwargs["path"], 0)
    return _options("standalone", (address,), kwargs, secure=secure)


def _speaks_tls(connection: type) -> bool:
    """Whether connections of this class are encrypted; redis-py does not always say so among their settings."""
    return any(parent.__name__ == "SSLConnection" for parent in connection.__mro__)


def _options(
    topology: Any, addresses: tuple[Address, ...], kwargs: Any, *, secure: bool, **more: Any
) -> Options:
    if kwargs.get("credential_provider") is not None:
        raise UsageError("a client with a credential provider cannot be taken over; use a URL")
    return Options(
        topology,
        addresses,
        username=kwargs.get("username") or "",
        password=kwargs.get("password") or "",
        db=int(kwargs.get("db") or 0),
        tls=_tls(kwargs) if secure else None,
        **more,
    )


def _tls(kwargs: Any) -> ssl.SSLContext:
    import ssl  # noqa: PLC0415 - most clients have no TLS

    given = {name: value for name, value in kwargs.items() if name.startswith("ssl_") and value}
    if unknown := given.keys() - TLS_SETTINGS:
        names = ", ".join(sorted(unknown))
        raise UsageError(f"a client with {names} cannot be taken over; use a URL")
    context = ssl.create_default_context(
        cafile=given.get("ssl_ca_certs"),
        capath=given.get("ssl_ca_path"),
        cadata=given.get("ssl_ca_data"),
    )
    context.minimum_version = given.get("ssl_min_version", ssl.TLSVersion.TLSv1_2)
    if "ssl_ciphers" in given:
        context.set_ciphers(given["ssl_ciphers"])
    if "ssl_certfile" in given:
        context.load_cert_chain(
            given["ssl_certfile"], given.get("ssl_keyfile"), given.get("ssl_password")
        )
    trusting = kwargs.get("ssl_cert_reqs", "required") in (None, "none", ssl.CERT_NONE)
    if trusting or kwargs.get("ssl_check_hostname") is False:
        context.check_hostname = False
    if trusting:
        context.verify_mode = ssl.CERT_NONE
    return context
