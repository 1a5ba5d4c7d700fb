# ruff: noqa: S106 - no password here opens anything
"""URLs: every scheme and option is understood, every mistake is told, and no password with it."""

from __future__ import annotations

import re
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from headgate import ConfigError
from headgate.engines.redis.options import QUERY_OPTIONS, SCHEMES, Options, parse_url

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "c4n4ry-p4ssw0rd"  # noqa: S105


@pytest.mark.parametrize(
    "url, expected",
    [
        ("redis://", Options("standalone", (("localhost", 6379),))),
        ("redis://host", Options("standalone", (("host", 6379),))),
        ("valkey://host:1", Options("standalone", (("host", 1),))),
        ("redis://host/3", Options("standalone", (("host", 6379),), db=3)),
        ("redis://host/?db=3", Options("standalone", (("host", 6379),), db=3)),
        ("redis://[::1]:7/2", Options("standalone", (("::1", 7),), db=2)),
        ("redis://[::1]", Options("standalone", (("::1", 6379),))),
        ("redis://:p@h", Options("standalone", (("h", 6379),), password="p")),
        ("redis://u:p@h", Options("standalone", (("h", 6379),), username="u", password="p")),
        ("redis://u%40x:p%2F%3F%23%40%3A@h",
         Options("standalone", (("h", 6379),), username="u@x", password="p/?#@:")),
        ("redis://u:p:q@h", Options("standalone", (("h", 6379),), username="u", password="p:q")),
        ("redis+unix:///run/redis.sock?db=4", Options("standalone", (("/run/redis.sock", 0),), db=4)),
        ("valkey+unix:///a%20b", Options("standalone", (("/a b", 0),))),
        ("redis+sentinel://a,b:1/name", Options("sentinel", (("a", 26379), ("b", 1)), master="name")),
        ("redis+sentinel://u:p@a/name?sentinel_password=s&db=1",
         Options("sentinel", (("a", 26379),), master="name", username="u", password="p",
                 sentinel_password="s", db=1)),
        ("valkey+cluster://a:1,b,[::1]:2",
         Options("cluster", (("a", 1), ("b", 6379), ("::1", 2)))),
        ("redis+cluster://a/0", Options("cluster", (("a", 6379),))),
        ("redis://h?deadline=0.25&connect_timeout=2&max_connections=3&max_batch=4&max_in_flight=5",
         Options("standalone", (("h", 6379),), deadline=0.25, decision_deadline=0.25,
                 connect_timeout=2.0,
                 max_connections=3, max_batch=4, max_in_flight=5)),
        ("redis://h?deny_cache=no&secret=s%20s&hash_keys=yes",
         Options("standalone", (("h", 6379),), deny_cache=False, secret=b"s s", hash_keys=True)),
    ],
)  # fmt: skip
def test_a_url_says_where_and_how(url: str, expected: Options) -> None:
    assert parse_url(url) == expected


@pytest.mark.parametrize("scheme", [*SCHEMES, *(one.replace("redis", "valkey") for one in SCHEMES)])
def test_every_scheme_is_understood(scheme: str) -> None:
    rest = "/run/redis.sock" if scheme.endswith("unix") else "host/0"
    options = parse_url(f"{scheme}://{rest}")
    assert (options.topology, options.tls is not None) == SCHEMES[scheme.replace("valkey", "redis")]


def test_tls_checks_the_certificate_and_the_name() -> None:
    context = parse_url("rediss://host").tls
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("url", ["redis:/localhost", "redis:localhost:6379", "rediss:/host/0"])
def test_a_url_with_a_slash_missing_says_so(url: str) -> None:
    with pytest.raises(ConfigError, match=r"write two slashes, as in rediss?://localhost"):
        parse_url(url)


BAD_OPTIONS = {
    "db": ["", "-1", "x", "1.5", "1e3", "99999999", "٣", "1" * 5_000],
    "deadline": ["", "0", "-1", "nan", "inf", "x", "1e9", "1s", "1_0", " 1", "٣"],
    "connect_timeout": ["0", "nan", "-inf", ""],
    "max_connections": ["0", "-1", "1.5", "99999", "", "x", "1" * 5_000],
    "max_batch": ["0", "x"],
    "max_in_flight": ["0", "x"],
    "deny_cache": ["", "maybe", "YES!", "2"],
    "hash_keys": ["x", "yes"],  # The second has no secret.
    "secret": ["", "s" * 65],
    "ca_file": ["/does/not/exist"],
    "cert_file": ["/does/not/exist"],
}


@pytest.mark.parametrize(
    "option, value", [(name, value) for name, values in BAD_OPTIONS.items() for value in values]
)
def test_an_option_that_makes_no_sense_is_refused(option: str, value: str) -> None:
    for scheme in ("redis", "rediss"):
        with pytest.raises(ConfigError) as caught:
            parse_url(f"{scheme}://u:{SECRET}@host?{option}={value}")
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "query, wanted",
    [
        ("deadline=1e9", "the option 'deadline' must be a number of seconds from 0.001 to 3600"),
        ("max_batch=0", "the option 'max_batch' must be a whole number from 1 to 65535"),
        ("deny_cache=maybe", "the option 'deny_cache' must be one of yes, no, true, false, 1, 0"),
        ("secret=", "the option 'secret' must be a string of 1 to 64 bytes"),
    ],
)
def test_a_bad_option_is_refused_with_what_it_must_be(query: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(wanted)):
        parse_url(f"redis://host?{query}")


@pytest.mark.parametrize(
    "url",
    [
        "", "redis", "http://host", "reddis://host", "redis+tcp://host", "memory://", "://host",
        "redis://u:SECRET@host:0", "redis://u:SECRET@host:65536", "redis://u:SECRET@host:x",
        "redis://u:SECRET@host:", "redis://u:SECRET@:1", "redis://u:SECRET@host:-1",
        "redis://u:SECRET@host/x", "redis://u:SECRET@host/-1", "redis://u:SECRET@host/1/2",
        "redis://u:SECRET@a,b", "redis://u:SECRET@[::1", "redis://u:SECRET@host?nope=1",
        "redis://u:SECRET@host?db=1&db=2", "redis://u:SECRET@host/1?db=2", "redis:///1?db=2",
        "redis+cluster://u:SECRET@host/1", "redis+cluster://u:SECRET@host?db=1",
        "redis+cluster://u:SECRET@a,,b", "redis+sentinel://u:SECRET@host",
        "redis+unix://", "redis+unix://host/path", "redis+unix://u:SECRET@/path?x=1",
        "redis://u:SECRET@host?ca_file=x", "redis://u:SECRET@host?sentinel_password=SECRET",
        "redis://u:SECRET@host?deadline=SECRET", "redis://u:SECRET@host?max_batch=SECRET",
        # Passwords that should have been escaped.
        "redis://u:SECRET/x@host", "redis://u:1/SECRET@host", "redis://u:SECRET?x@host",
        "redis://u:1?SECRET@host", "redis://u:SECRET#x@host", "redis://u:1#SECRET@host",
        "redis://u:[SECRET@host", "redis://u:SECRET\u2100@host", "redis://host#SECRET",
        "redis+cluster://u:SECRET/x@a,b", "redis+sentinel://u:SECRET/x@a/name",
    ],
)  # fmt: skip
def test_a_mistake_in_a_url_is_reported_without_the_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(url.replace("SECRET", SECRET))
    chain: BaseException | None = caught.value
    while chain is not None:
        assert SECRET not in str(chain)
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)


@given(
    st.text(max_size=60), st.sampled_from(list(SCHEMES)), st.sampled_from(["", "host", "?", "h?"])
)
def test_any_text_is_a_url_or_a_config_error(text: str, scheme: str, start: str) -> None:
    addresses: tuple[tuple[str, int], ...] = (("refused", 1),)
    with suppress(ConfigError):
        addresses = parse_url(f"{scheme}://{start}{text}").addresses
    assert addresses
    assert all(0 < port < 65_536 for _, port in addresses)


def test_what_is_secret_shows_nowhere() -> None:
    url = f"redis+sentinel://u:{SECRET}@h/name?secret={SECRET}&sentinel_password={SECRET}"
    options = parse_url(url)
    assert options.password == options.sentinel_password == SECRET
    assert SECRET not in repr(options) + str(options)


def test_every_option_is_in_the_table() -> None:
    fields = set(Options.__dataclass_fields__)
    assert QUERY_OPTIONS.keys() - fields == {"ca_file", "cert_file", "key_file"}
    taken_from_elsewhere = {
        "topology", "addresses", "master", "username", "password", "tls", "sentinel_tls",
        "decision_deadline",
    }  # fmt: skip
    assert fields - QUERY_OPTIONS.keys() == taken_from_elsewhere


def test_unreadable_certificates_are_reported_by_name(tmp_path: Path) -> None:
    bad: Any = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    with pytest.raises(ConfigError, match="certificates"):
        parse_url(f"rediss://host?ca_file={bad}")
