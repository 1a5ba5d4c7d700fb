"""How an engine gets in: TLS, Unix sockets, passwords, and a user that may do nothing else."""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headgate import AsyncLimiter, Concurrency, EngineError, FixedWindow, Limiter, SlidingLog
from headgate.engines.redis.aio import AsyncRedisEngine
from headgate.engines.redis.connection import Pool
from headgate.engines.redis.link import connect
from headgate.engines.redis.options import parse_url
from headgate.engines.redis.scripts import library
from headgate.engines.redis.sync import RedisEngine
from headgate.testing import Blocking, ManualClock
from headgate.testing.conformance import START, EngineConformance
from headgate.testing.story import all_stories, differences, replay
from tests.servers.fixtures import on_flavours
from tests.servers.process import HOST
from tests.servers.redis import WITH_TLS, standalone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate import Engine
    from tests.servers.redis import RedisServer, SentinelGroup

pytestmark = pytest.mark.slow

CANARY = "c4n4ry-p4ssw0rd"
LIMIT = FixedWindow(1_000, 250 * 86_400_000_000)
KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


def hit(kind: str, url: str, times: int = 1) -> list[Any]:
    """Hit a key a few times through an engine of its own."""
    if kind == "sync":
        engine = RedisEngine(url)
        try:
            return [engine.bind(LIMIT)("key", 1) for _ in range(times)]
        finally:
            engine.close()

    async def main() -> list[Any]:
        engine = AsyncRedisEngine(url)
        try:
            return [await engine.bind(LIMIT)("key", 1) for _ in range(times)]  # type: ignore[misc]
        finally:
            await engine.aclose()

    return asyncio.run(main())


def listed(kind: str, url: str) -> Any:
    """The keys that an engine of its own lists."""
    engine: Any = RedisEngine(url) if kind == "sync" else Blocking(AsyncRedisEngine(url))
    try:
        return engine.list_keys()
    finally:
        engine.close()


@pytest.fixture(scope="module")
def secure() -> Iterator[RedisServer]:
    with standalone(WITH_TLS, tls=True, unix_socket=True, requirepass=CANARY) as server:
        yield server


@KINDS
def test_a_unix_socket_works_like_a_port(secure: RedisServer, kind: str) -> None:
    url = f"redis+unix://:{CANARY}@{secure.socket}"
    assert hit(kind, url)


@KINDS
def test_tls_works_with_a_private_authority(secure: RedisServer, kind: str) -> None:
    assert secure.certificates is not None
    accepted = int(secure.info("stats")["total_connections_received"])
    for host in (HOST, "localhost"):
        url = f"rediss://:{CANARY}@{host}:{secure.tls_port}?ca_file={secure.certificates.authority}"
        assert all(hit(kind, url, 5))
    made = int(secure.info("stats")["total_connections_received"]) - accepted
    assert made == 2  # One engine keeps one connection, also through TLS.


@KINDS
def test_sentinels_may_be_plain_while_servers_use_tls(secure: RedisServer, kind: str) -> None:
    assert secure.certificates is not None
    assert secure.tls_port is not None
    url = f"rediss+sentinel://:{CANARY}@h/name?ca_file={secure.certificates.authority}"
    options = replace(parse_url(url), sentinel_tls=None, sentinel_password=CANARY)
    plain, encrypted = (HOST, secure.port), (HOST, secure.tls_port)

    async def main() -> list[Any]:
        links = [await connect(plain, options, sentinel=True), await connect(encrypted, options)]
        answers = [await link.call((b"PING",)) for link in links]
        for link in links:
            link.abort()
        return answers

    if kind == "async":
        assert asyncio.run(main()) == [b"PONG"] * 2
        return
    pool = Pool(options)
    assert pool.call(plain, (b"PING",), 10, sentinel=True) == b"PONG"
    assert pool.call(encrypted, (b"PING",), 10) == b"PONG"
    pool.close()


@KINDS
def test_an_untrusted_certificate_or_one_for_another_name_is_refused(
    secure: RedisServer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert secure.certificates is not None
    authority = secure.certificates.authority
    for url, reason in (
        (f"rediss://:{CANARY}@{HOST}:{secure.tls_port}?deadline=0.3", "self-signed|unable to get"),
        (
            f"rediss://:{CANARY}@127.1:{secure.tls_port}?ca_file={authority}&deadline=0.3",
            "mismatch",
        ),
        (
            f"rediss://:{CANARY}@{HOST}:{secure.port}?ca_file={authority}&deadline=0.3",
            "cannot connect to .*handshake",
        ),
    ):
        with pytest.raises(EngineError, match=reason) as caught:
            hit(kind, url)
        assert CANARY not in "".join(traceback.format_exception(caught.value))
    assert CANARY not in caplog.text


@KINDS
@on_flavours("redis_server", "redis-7.0")
def test_a_lone_server_is_not_taken_for_a_cluster(redis_server: RedisServer, kind: str) -> None:
    """Told at once, and by any verb: no later try would find one."""
    url = redis_server.url.replace("redis://", "redis+cluster://").rsplit("/", 1)[0]
    words = "is not part of a Cluster .*cluster support disabled.*; use a redis:// URL"
    with pytest.raises(EngineError, match=words) as caught:
        hit(kind, f"{url}?deadline=60")
    assert not caught.value.transient
    with pytest.raises(EngineError, match=words):
        listed(kind, f"{url}?deadline=60")


@KINDS
@on_flavours("redis_sentinel", "redis-7.0")
def test_a_name_that_no_sentinel_knows_is_reported(
    redis_sentinel: SentinelGroup, kind: str
) -> None:
    """A Sentinel may be told it yet, so there is time until the deadline."""
    url = f"{redis_sentinel.url.rsplit('/', 1)[0]}/bad?deadline=0.3"
    words = r"within 0\.3 s \(the Sentinel at .* has no master named 'bad'\)"
    with pytest.raises(EngineError, match=words) as caught:
        hit(kind, url)
    assert caught.value.transient
    assert not caught.value.indefinite
    with pytest.raises(EngineError, match=r"did not answer: the Sentinel at .* named 'bad'"):
        listed(kind, url)


@KINDS
def test_a_socket_that_is_not_there_is_named_by_its_path(kind: str) -> None:
    with pytest.raises(EngineError, match=r"cannot connect to /nowhere/redis\.sock: "):
        hit(kind, "redis+unix:///nowhere/redis.sock?deadline=0.1")


@KINDS
def test_a_server_may_ask_for_our_certificate(kind: str) -> None:
    with standalone(WITH_TLS, tls=True, tls_auth_clients="yes") as server:
        files = server.certificates
        assert files is not None
        url = f"rediss://{HOST}:{server.tls_port}?deadline=0.5&ca_file={files.authority}"
        with pytest.raises(EngineError):
            hit(kind, url)
        assert hit(kind, f"{url}&cert_file={files.client}&key_file={files.client_key}")


@KINDS
def test_a_refused_password_is_reported_and_never_shown(
    secure: RedisServer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for user in ("", "nobody"):
        url = f"redis://{user}:{CANARY}wrong@{HOST}:{secure.port}?deadline=60"
        with pytest.raises(EngineError, match=r"WRONGPASS|invalid") as caught:
            hit(kind, url)
        assert not caught.value.transient  # Said at once, and not after a minute of trying.
        assert CANARY not in "".join(traceback.format_exception(caught.value))
        engine = RedisEngine(url) if kind == "sync" else AsyncRedisEngine(url)
        assert CANARY not in repr(engine) + str(engine.options)
    with pytest.raises(EngineError, match="NOAUTH"):
        hit(kind, f"redis://{HOST}:{secure.port}?deadline=60")
    assert CANARY not in caplog.text


@KINDS
@on_flavours("redis_server", "redis-7.0", "valkey-9")
def test_a_missing_or_forbidden_database_is_reported_at_once(
    redis_server: RedisServer, kind: str
) -> None:
    allowed = allow(redis_server, COMMANDS)
    try:
        for url, reason in (
            (f"redis://{HOST}:{redis_server.port}/9999?deadline=60", "DB index"),
            (allowed.replace("/0?deadline=10", "/1?deadline=60"), "NOPERM"),
        ):
            with pytest.raises(EngineError, match=reason) as caught:
                hit(kind, url)
            assert (caught.value.transient, caught.value.indefinite) == (False, False)
    finally:
        redis_server.call("ACL", "DELUSER", "headgate")


@KINDS
def test_sentinels_that_refuse_us_are_reported_at_once(secure: RedisServer, kind: str) -> None:
    url = f"redis+sentinel://{HOST}:{secure.port}/name?sentinel_password=wrong&deadline=60"
    with pytest.raises(EngineError, match="WRONGPASS") as caught:
        hit(kind, url)
    assert not caught.value.transient


# --- a server that may forget --------------------------------------------------------------------


@KINDS
@on_flavours("redis_server", "redis-7.0", "valkey-9")
def test_a_server_that_can_evict_keys_is_warned_about_once(
    redis_server: RedisServer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    redis_server.config_set(maxmemory="100mb", maxmemory_policy="allkeys-lru")
    try:
        hit(kind, redis_server.url, 3)
    finally:
        redis_server.config_set(maxmemory=0, maxmemory_policy="noeviction")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "allkeys-lru" in caplog.text
    caplog.clear()
    hit(kind, redis_server.url, 3)
    assert caplog.text == ""


@KINDS
@on_flavours("redis_server", "redis-7.0")
def test_the_logger_of_a_limiter_gets_warnings_about_its_server(
    redis_server: RedisServer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("app.limits")

    async def main() -> None:
        async with AsyncLimiter(redis_server.url, logger=log, namespace="n") as limiter:
            await limiter.hit("key", "1/minute")

    redis_server.config_set(maxmemory="100mb", maxmemory_policy="allkeys-lru")
    try:
        if kind == "async":
            asyncio.run(main())
        else:
            with Limiter(redis_server.url, logger=log, namespace="n") as limiter:
                limiter.hit("key", "1/minute")
    finally:
        redis_server.config_set(maxmemory=0, maxmemory_policy="noeviction")
    assert [record.name for record in caplog.records] == ["app.limits"]


# --- the least that a user must be allowed -------------------------------------------------------

BY_FUNCTIONS = {"FCALL", "FUNCTION|LOAD"}
BY_SCRIPTS = {"EVALSHA", "EVAL"}
IN_LUA = set(re.findall(r"\b(?:call|read)\('([A-Z]+)'", library().decode()))
COMMANDS = BY_FUNCTIONS | IN_LUA | {"SCAN"}


def allow(server: RedisServer, commands: set[str]) -> str:
    """Make a user that may run these commands on our keys and nothing else; returns its URL."""
    rules = [f"+{name.lower()}" for name in sorted(commands)]
    server.call("ACL", "SETUSER", "headgate", "reset", "on", f">{CANARY}", "~hg:*", *rules)
    return f"redis://headgate:{CANARY}@{HOST}:{server.port}/0?deadline=10"


def test_the_how_to_allows_what_is_used_and_nothing_else() -> None:
    text = (Path(__file__).parents[4] / "docs/how-to/use-redis.md").read_text("utf-8")
    told = text.partition("ACL SETUSER headgate")[2].partition("```")[0]
    assert set(re.findall(r"\+(\S+)", told)) == {name.lower() for name in COMMANDS}


class TestLeastPrivilege(EngineConformance):
    """The whole suite, as a user that may touch `hg:*` with two dozen commands; also one without functions."""

    programs = 20

    @pytest.fixture(params=["sync", "async", "sync, by scripts", "async, by scripts"])
    def engine(
        self, request: pytest.FixtureRequest, redis_server: RedisServer, clock: ManualClock
    ) -> Iterator[Engine]:
        scripts = request.param.endswith("by scripts")
        url = allow(redis_server, COMMANDS - BY_FUNCTIONS | BY_SCRIPTS if scripts else COMMANDS)
        engine: Engine
        if request.param.startswith("sync"):
            engine = RedisEngine(url, clock=clock)
        else:
            engine = Blocking(AsyncRedisEngine(url, clock=clock))
        yield engine
        engine.close()
        redis_server.call("ACL", "DELUSER", "headgate")


@on_flavours("redis_server", "redis-7.0")
def test_no_command_of_the_least_privilege_is_too_many(redis_server: RedisServer) -> None:
    """Without any one of them, some story cannot be told."""

    def told(commands: set[str]) -> bool:
        url = allow(redis_server, commands)
        for story in all_stories():
            clock = ManualClock(START)
            engine = RedisEngine(url, clock=clock)
            redis_server.flush()
            try:
                assert differences(replay(story, engine, clock)) == ""
            except EngineError:
                return False
            finally:
                engine.close()
        redis_server.flush()
        engine = RedisEngine(url)  # By the server's clock, which no story asks.
        try:
            engine.bind(Concurrency(1, 60_000_000))("key", 1)
            long_log = engine.bind(SlidingLog(10, 60_000_000))
            return (
                all(long_log("key", 1) for _ in range(10)) and len(engine.list_keys().entries) == 2
            )
        except EngineError:
            return False
        finally:
            engine.close()

    assert told(COMMANDS)
    needless = {name for name in COMMANDS if told(COMMANDS - {name})}
    redis_server.call("ACL", "DELUSER", "headgate")
    assert needless == set(), sorted(COMMANDS)
