"""What is read off a ready client, for each way to make one. None of them connects."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio

from headgate import UsageError
from headgate.engines.redis.client import options_of

if TYPE_CHECKING:
    from collections.abc import Callable

SENTINEL: Any = redis.Sentinel([("h", 1)])  # type: ignore[no-untyped-call]


SECURE: dict[str, Callable[[], Any]] = {
    "arguments": lambda: redis.Redis(ssl=True),
    "url": lambda: redis.Redis.from_url("rediss://:pw@h"),
    "pool": lambda: redis.ConnectionPool.from_url("rediss://h"),
    "class": lambda: redis.Redis(
        connection_pool=redis.ConnectionPool(connection_class=redis.SSLConnection)
    ),
    "sentinel": lambda: SENTINEL.master_for("m", ssl=True),
    "async arguments": lambda: redis.asyncio.Redis(ssl=True),
    "async url": lambda: redis.asyncio.Redis.from_url("rediss://:pw@h"),
    "cluster arguments": lambda: redis.asyncio.RedisCluster("h", 1, ssl=True),
    "cluster url": lambda: redis.asyncio.RedisCluster.from_url("rediss://h:1"),
}
PLAIN: dict[str, Callable[[], Any]] = {
    "arguments": redis.Redis,
    "url": lambda: redis.Redis.from_url("redis://:pw@h"),
    "socket": lambda: redis.Redis.from_url("unix:///run/redis.sock"),
    "sentinel": lambda: SENTINEL.master_for("m"),
    "async arguments": redis.asyncio.Redis,
    "cluster arguments": lambda: redis.asyncio.RedisCluster("h", 1),
}


@pytest.mark.parametrize("way", SECURE)
def test_tls_is_taken_over_however_the_client_was_told(way: str) -> None:
    context = options_of(SECURE[way]()).tls
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize("way", PLAIN)
def test_no_tls_stays_no_tls(way: str) -> None:
    assert options_of(PLAIN[way]()).tls is None


def test_what_a_client_checks_of_the_server_is_taken_over() -> None:
    lax = options_of(redis.Redis(ssl=True, ssl_check_hostname=False)).tls
    assert lax is not None
    assert (lax.verify_mode, lax.check_hostname) == (ssl.CERT_REQUIRED, False)
    none = options_of(redis.Redis(ssl=True, ssl_cert_reqs="none")).tls
    assert none is not None
    assert (none.verify_mode, none.check_hostname) == (ssl.CERT_NONE, False)
    newest = options_of(redis.Redis(ssl=True, ssl_min_version=ssl.TLSVersion.TLSv1_3)).tls
    assert newest is not None
    assert newest.minimum_version == ssl.TLSVersion.TLSv1_3


def test_what_is_not_understood_is_refused() -> None:
    with pytest.raises(UsageError, match="ssl_validate_ocsp cannot be taken over; use a URL"):
        options_of(redis.Redis(ssl=True, ssl_validate_ocsp=True))


def test_a_pool_is_as_good_as_a_client() -> None:
    options = options_of(redis.ConnectionPool.from_url("redis://me:pw@h:7/3"))
    assert (options.addresses, options.username, options.password, options.db) == (
        (("h", 7),),
        "me",
        "pw",
        3,
    )
