"""Every known way to write a path differently, and what becomes of it."""

from __future__ import annotations

import pytest

from headgate.errors import UsageError
from headgate.rules.matching.paths import (
    MAX_PATH_BYTES,
    MAX_SEGMENTS,
    BadPathError,
    canonical_path,
    readings,
)

SAME_AS_LOGIN = {
    "as it is": "/api/login",
    "two slashes": "/api//login",
    "many slashes": "////api///login",
    "a dot segment": "/api/./login",
    "a step back": "/api/x/../login",
    "steps back beyond the root": "/../../api/login",
    "escaped dots": "/api/x/%2e%2E/login",
    "half escaped dots": "/api/x/.%2e/login",
    "an escaped letter": "/api/log%69n",
    "all letters escaped": "/%61%70%69/%6c%6f%67%69%6e",
    "a path parameter": "/api;x=1/login;jsessionid=7",
    "a parameter after dots": "/api/x/..;/login",
    "a parameter alone": "/api/;x=1/login",
    "a trailing slash": "/api/login/",
    "trailing slashes": "/api/login///",
    "a trailing dot segment": "/api/login/.",
    "a query": "/api/login?next=/a/../b",
    "a query after a slash": "/api/login/?",
    "a fragment": "/api/login#top",
    "a fragment with a query": "/api/login#top?x",
    "absolute form": "http://example.com/api/login",
    "absolute form with a port": "HTTPS://user@example.com:8443/api/login?x",
    "no leading slash": "api/login",
}


@pytest.mark.parametrize("raw", SAME_AS_LOGIN.values(), ids=SAME_AS_LOGIN)
def test_a_path_cannot_be_disguised_by(raw: str) -> None:
    assert canonical_path(raw) == "/api/login"


OTHERS = {
    "upper case is another path": ("/API/login", "/API/login"),
    "a dot at the end of a name stays": ("/api/login.", "/api/login."),
    "three dots are a name": ("/api/.../login", "/api/.../login"),
    "a hidden file is a name": ("/.well-known/x", "/.well-known/x"),
    "nothing is decoded twice": ("/api/%252e%252e/login", "/api/%252e%252e/login"),
    "a doubly escaped slash stays one name": ("/api/x%252fy", "/api/x%252fy"),
    "an escaped space is kept": ("/api/a%20b", "/api/a%20b"),
    "a raw space is escaped": ("/api/a b", "/api/a%20b"),
    "hex digits are capitals": ("/api/%c3%a9", "/api/%C3%A9"),
    "raw letters beyond ASCII are escaped": ("/api/é", "/api/%C3%A9"),
    "full-width letters are other letters": ("/ａｐｉ", "/%EF%BD%81%EF%BD%90%EF%BD%89"),
    "an escaped question mark is no query": ("/api/a%3fb", "/api/a%3Fb"),
    "an escaped semicolon is no parameter": ("/api/a%3bb", "/api/a%3Bb"),
    "what may stand for itself is decoded": ("/users/%40me%3Anow", "/users/@me:now"),
    "two slashes in front are no host": ("//evil/api", "/evil/api"),
    "the root": ("/", "/"),
    "nothing is the root": ("", "/"),
    "a host alone is its root": ("http://example.com", "/"),
    "a query alone is the root": ("?x=/login", "/"),
    "dots alone are the root": ("/..", "/"),
    "the whole server": ("*", "*"),
    "an escaped star is a name": ("/%2A", "/*"),
}


@pytest.mark.parametrize("raw, path", OTHERS.values(), ids=OTHERS)
def test_one_spelling(raw: str, path: str) -> None:
    assert canonical_path(raw) == path


READINGS = {
    "an escaped slash": ("/api%2flogin", "/api%2Flogin", ["/api/login"]),
    "an escaped backslash": ("/api%5clogin", "/api%5Clogin", ["/api/login"]),
    "a backslash": ("\\api\\login", "/%5Capi%5Clogin", ["/api/login"]),
    "a step back": ("/x%2f..%2fapi%2flogin", "/x%2F..%2Fapi%2Flogin", ["/api/login"]),
    "an escaped step back": ("/x%2f%2e%2E%2flogin", "/x%2F..%2Flogin", ["/login"]),
    "a slash at the end": ("/login%2f", "/login%2F", ["/login"]),
    "only slashes": ("%2f%5c", "/%2F%5C", ["/%5C", "/%2F", "/"]),
    "both, of which either may be meant": (
        "/a%2f..\\login",
        "/a%2F..%5Clogin",
        ["/a/..%5Clogin", "/a%2F../login", "/login"],
    ),
    "a slash in a parameter": ("/a;x%2flogin/b", "/a/b", ["/a/login/b"]),
    "a step back over nothing": ("/login//..", "/", ["/login"]),
    "a step back over a parameter": ("/login/;x/..", "/", ["/login"]),
    "a step back with a parameter": ("/x/..;y/login", "/login", ["/x/..%3By/login"]),
    "slashes and steps back": ("\\login//;a=b//../", "/", ["/%5Clogin", "/login"]),
    "a package": (
        "/npm/@scope%2fname/-/x.tgz",
        "/npm/@scope%2Fname/-/x.tgz",
        ["/npm/@scope/name/-/x.tgz"],
    ),
    "a slash that was escaped twice": ("/a%252fb", "/a%252fb", []),
    "a slash in a query": ("/a?b=%2f\\", "/a", []),
    "no slash of either kind": ("/log%69n", "/login", []),
}


@pytest.mark.parametrize("raw, path, others", READINGS.values(), ids=READINGS)
def test_a_path_that_servers_read_differently_has_several_readings(
    raw: str, path: str, others: list[str]
) -> None:
    assert canonical_path(raw) == path
    assert [*readings(raw)] == [path, *others]
    for reading in others:
        assert canonical_path(reading) == reading


def test_a_path_that_is_too_deep_in_another_reading_is_refused() -> None:
    raw = "/a" + "%2fa" * MAX_SEGMENTS
    with pytest.raises(BadPathError, match="256 segments, not 257"):
        canonical_path(raw)


REFUSED = {
    "an escaped NUL": ("/api/login%00", "%00"),
    "an escaped newline": ("/api/login%0a", "%0a"),
    "an escaped delete": ("/api/login%7F", "%7F"),
    "a raw NUL": ("/api/login\0", "control"),
    "a raw newline": ("/api/login\r\n", "control"),
    "half an escape": ("/api/login%", "not a valid escape"),
    "an escape of one digit": ("/api/login%4", "not a valid escape"),
    "an escape that is none": ("/api/%zz", "not a valid escape"),
    "an escape in other digits": ("/api/%４１", "not a valid escape"),
    "an overlong slash": ("/api%c0%aflogin", "UTF-8"),
    "an overlong dot": ("/%c0%ae%c0%ae/", "UTF-8"),
    "an overlong slash of three bytes": ("/%e0%80%af", "UTF-8"),
    "half a surrogate pair in escapes": ("/%ed%a0%80", "UTF-8"),
    "a lone byte": ("/caf%e9", "UTF-8"),
    "a broken sequence": ("/%e2%82", "UTF-8"),
    "half a surrogate pair": ("/\ud800", "surrogate"),
    "half a surrogate pair beside escapes": ("/%41%c3%a9\ud800", "surrogate"),
    "8 KB and one": ("/" + "a" * MAX_PATH_BYTES, "8192"),
    "8 KB once it is escaped": ("/" + "é" * 2_000, "8192"),
    "8 KB of spaces": ("/" + " " * 8_000, "8192"),
    "too many segments": ("/a" * (MAX_SEGMENTS + 1), "256"),
}


@pytest.mark.parametrize("raw, reason", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_refused(raw: str, reason: str) -> None:
    with pytest.raises(BadPathError, match=reason):
        canonical_path(raw)


def test_a_refusal_is_a_usage_error() -> None:
    assert issubclass(BadPathError, UsageError)


def test_the_longest_path_and_the_deepest_are_read() -> None:
    assert canonical_path("/" + "a" * (MAX_PATH_BYTES - 1)) == "/" + "a" * (MAX_PATH_BYTES - 1)
    assert canonical_path("/a" * MAX_SEGMENTS) == "/a" * MAX_SEGMENTS


def test_segments_that_cancel_out_do_not_count() -> None:
    assert canonical_path("/./" * 2_000 + "login") == "/login"
