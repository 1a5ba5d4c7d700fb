"""What is read off a ready client, for each way to make one. None of them connects."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio

from headgate import UsageError
from headgate.engines.redis.client import options_of
from headgate.engines.redis.options import parse_url

if TYPE_CHECKING:
    from collections.abc import Callable

PROVIDER = redis.UsernamePasswordCredentialProvider("u", "p")
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
def test_tls_settings_of_any_form_are_taken_over(way: str) -> None:
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


def test_unsupported_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="ssl_validate_ocsp cannot be taken over; use a URL"):
        options_of(redis.Redis(ssl=True, ssl_validate_ocsp=True))


@pytest.mark.parametrize("kind", [redis.Sentinel, redis.asyncio.Sentinel], ids=["sync", "async"])
def test_sentinels_keep_their_own_tls_and_password(kind: Any) -> None:
    """What is said about the servers is not said about their Sentinels, and the other way round."""
    ours: dict[str, Any] = {"password": "m"}
    theirs = {"password": "s", "ssl": True, "ssl_check_hostname": False}
    options = options_of(kind([("h", 1), ("i", 2)], sentinel_kwargs=theirs, **ours).master_for("n"))
    assert (options.addresses, options.master) == ((("h", 1), ("i", 2)), "n")
    assert (options.password, options.sentinel_password) == ("m", "s")
    assert options.tls is None
    assert options.sentinel_tls is not None
    assert not options.sentinel_tls.check_hostname
    options = options_of(kind([("h", 1)], ssl=True, **ours).master_for("n"))
    assert (options.password, options.sentinel_password) == ("m", "")
    assert options.tls is not None
    assert options.sentinel_tls is None


def test_a_url_has_one_tls_for_sentinels_and_servers() -> None:
    options = parse_url("rediss+sentinel://h/name")
    assert options.tls is not None
    assert options.tls_to(sentinel=True) is options.tls_to(sentinel=False) is options.tls
    assert parse_url("rediss://h").sentinel_tls is None


def sentinel(**settings: Any) -> Any:
    return redis.Sentinel([("h", 1)], **settings)  # type: ignore[no-untyped-call]


REFUSED: dict[str, Callable[[], Any]] = {
    "a credential provider": lambda: redis.Redis(credential_provider=PROVIDER),
    "a credential provider for its Sentinels": lambda: sentinel(
        sentinel_kwargs={"credential_provider": PROVIDER}
    ).master_for("n"),
    "a user name for its Sentinels": lambda: sentinel(
        sentinel_kwargs={"username": "u", "password": "p"}
    ).master_for("n"),
    "ssl_validate_ocsp": lambda: sentinel(
        sentinel_kwargs={"ssl": True, "ssl_validate_ocsp": True}
    ).master_for("n"),
    "only replicas to connect to": lambda: sentinel().slave_for("n"),
    "min_other_sentinels": lambda: sentinel(min_other_sentinels=1).master_for("n"),
    "a force_master_ip": lambda: sentinel(force_master_ip="127.0.0.1").master_for("n"),
    "an address_remap": lambda: redis.asyncio.RedisCluster("h", 1, address_remap=lambda one: one),
}


@pytest.mark.parametrize("what", REFUSED)
def test_options_that_would_be_ignored_are_refused(what: str) -> None:
    with pytest.raises(UsageError, match=f"a client with {what} cannot be taken over"):
        options_of(REFUSED[what]())


def test_a_pool_works_like_a_client() -> None:
    options = options_of(redis.ConnectionPool.from_url("redis://me:pw@h:7/3"))
    assert (options.addresses, options.username, options.password, options.db) == (
        (("h", 7),),
        "me",
        "pw",
        3,
    )
