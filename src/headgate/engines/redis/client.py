"""A redis-py client instead of a URL: its settings are used, but not its connections.

A client retries, pools and decodes as configured, but a limiter must know exactly what was sent and how often. So the
address, the credentials and the TLS settings are read from the client, and the engine opens its own connections.
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
"""The TLS settings of redis-py that are supported here."""


def is_client(value: object) -> bool:
    """Whether this looks like a client of redis-py or valkey-py, sync or async, plain or Cluster, or like its pool."""
    return any(
        hasattr(value, name) for name in ("connection_pool", "nodes_manager", "connection_kwargs")
    )


def options_of(client: Any) -> Options:
    """The address and credentials of a client or its pool."""
    if hasattr(client, "nodes_manager"):
        manager = client.nodes_manager
        _refuse("an address_remap", getattr(manager, "address_remap", None))
        kwargs = manager.connection_kwargs
        nodes = tuple((node.host, int(node.port)) for node in manager.startup_nodes.values())
        secure = kwargs.get("ssl") or _speaks_tls(kwargs.get("connection_class", object))
        return _options("cluster", nodes, kwargs, secure=secure)
    pool = getattr(client, "connection_pool", client)
    kwargs = pool.connection_kwargs
    secure = _speaks_tls(pool.connection_class)
    if hasattr(pool, "sentinel_manager"):
        addresses, more = _sentinels(pool)
        return _options("sentinel", addresses, kwargs, secure=secure, **more)
    address: Address = (kwargs.get("host", "localhost"), int(kwargs.get("port", 6379)))
    if kwargs.get("path"):
        address = (kwargs["path"], 0)
    return _options("standalone", (address,), kwargs, secure=secure)


def _sentinels(pool: Any) -> tuple[tuple[Address, ...], dict[str, Any]]:
    """The addresses of a pool's Sentinels, and their settings, which are separate from those of the servers."""
    manager = pool.sentinel_manager
    _refuse("only replicas to connect to", not pool.is_master)
    _refuse("min_other_sentinels", manager.min_other_sentinels)
    _refuse("a force_master_ip", getattr(manager, "_force_master_ip", None))
    pools = [one.connection_pool for one in manager.sentinels]
    addresses = tuple(
        (one.connection_kwargs["host"], int(one.connection_kwargs["port"])) for one in pools
    )
    kwargs = pools[0].connection_kwargs  # All have the same settings.
    _refuse("a credential provider for its Sentinels", kwargs.get("credential_provider"))
    _refuse("a user name for its Sentinels", kwargs.get("username"))
    return addresses, {
        "master": pool.service_name,
        "sentinel_password": kwargs.get("password") or "",
        "sentinel_tls": _tls(kwargs) if _speaks_tls(pools[0].connection_class) else None,
    }


def _refuse(what: str, given: object) -> None:
    """Refuse a setting that would be ignored."""
    if given:
        raise UsageError(f"a client with {what} cannot be taken over; use a URL")


def _speaks_tls(connection: type) -> bool:
    """Whether connections of this class are encrypted; not always visible in redis-py's settings."""
    return any(parent.__name__ == "SSLConnection" for parent in connection.__mro__)


def _options(
    topology: Any, addresses: tuple[Address, ...], kwargs: Any, *, secure: bool, **more: Any
) -> Options:
    _refuse("a credential provider", kwargs.get("credential_provider") is not None)
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
    import ssl  # noqa: PLC0415 - most clients do not use TLS

    given = {name: value for name, value in kwargs.items() if name.startswith("ssl_") and value}
    _refuse(", ".join(sorted(given.keys() - TLS_SETTINGS)), given.keys() - TLS_SETTINGS)
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
