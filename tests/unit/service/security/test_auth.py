from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headgate.errors import ConfigError, UsageError
from headgate.service.security import auth as auth_module
from headgate.service.security.auth import Auth, Caller, require_safe_bind
from headgate.service.security.hosts import hosts_for, is_loopback
from headgate.service.security.tokens import (
    ROLES,
    Role,
    Token,
    added,
    digest_of,
    new_token,
    read_tokens,
    without,
    write_tokens,
)

NOW = datetime(2027, 1, 15, 8, tzinfo=UTC)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def bearer(text: str) -> bytes:
    return f"Bearer {text}".encode()


def test_a_token_is_recognised_and_its_file_does_not_hold_it(file: Path) -> None:
    text, kept = new_token("ann", "operator", now=NOW)
    write_tokens(file, [kept])
    assert Auth(str(file)).caller(bearer(text), "1.2.3.4") == Caller("ann", "operator", "1.2.3.4")
    assert text not in file.read_text()
    assert text.removeprefix("hg_") not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_two_tokens_are_never_alike_and_hold_256_bits() -> None:
    texts = {new_token("a", "viewer", now=NOW)[0] for _ in range(100)}
    assert len(texts) == 100
    assert {len(text) for text in texts} == {3 + 43}


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"Bearer ",
        b"Bearer wrong",
        b"Basic {}",
        b"{}",
        b"Bearer {}x",
        b"Bearer " + b"x" * 600,
    ],
)
def test_any_other_header_identifies_no_caller(file: Path, header: bytes | None) -> None:
    text, kept = new_token("ann", "admin", now=NOW)
    write_tokens(file, [kept])
    sent = None if header is None else header.replace(b"{}", text.encode())
    assert Auth(str(file)).caller(sent, "") is None


def test_the_scheme_may_be_written_in_any_case(file: Path) -> None:
    text, kept = new_token("ann", "admin", now=NOW)
    write_tokens(file, [kept])
    assert Auth(str(file)).identify(b"bEaReR  " + text.encode()) == kept


def test_a_token_expires(file: Path) -> None:
    now = datetime.now(UTC)
    text, live = new_token("live", "viewer", now=now, expires=now + timedelta(hours=1))
    gone, dead = new_token("dead", "viewer", now=now, expires=now - timedelta(seconds=1))
    write_tokens(file, [live, dead])
    auth = Auth(str(file))
    assert auth.identify(bearer(text)) == live
    assert auth.identify(bearer(gone)) is None


def test_the_file_is_read_again_when_it_changes(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth_module, "LOOK_EVERY", 0.0)
    text, kept = new_token("ann", "admin", now=NOW)
    write_tokens(file, [kept])
    auth = Auth(str(file))
    write_tokens(file, [])
    assert auth.identify(bearer(text)) is None
    write_tokens(file, [kept])
    assert auth.identify(bearer(text)) == kept
    file.write_text("{")  # Broken while it is edited: those read before hold.
    assert auth.identify(bearer(text)) == kept


def test_tokens_can_be_given_as_text() -> None:
    text = "hg_something"
    auth = Auth(f"sha256:admin:ann:{digest_of(text)}, sha256:viewer:prom:{'0' * 64}")
    assert auth.caller(bearer(text), "") == Caller("ann", "admin", "")


def test_without_tokens_everybody_on_this_machine_may_do_everything() -> None:
    caller = Auth().caller(None, "127.0.0.1")
    assert caller is not None
    assert caller.may("admin")


@pytest.mark.parametrize("role", ROLES)
def test_a_role_includes_those_below_it(role: Role) -> None:
    caller = Caller("ann", role)
    assert [one for one in ROLES if caller.may(one)] == list(ROLES[: ROLES.index(role) + 1])


def test_checks_need_a_token_only_if_configured(file: Path) -> None:
    text, kept = new_token("gateway", "checker", now=NOW)
    write_tokens(file, [kept])
    assert Auth(str(file)).may_check(None)
    strict = Auth(str(file), checks_need_token=True)
    assert strict.may_check(bearer(text))
    assert not strict.may_check(None)
    with pytest.raises(ConfigError, match="there are none"):
        Auth(checks_need_token=True)


def test_guessing_is_limited_by_address() -> None:
    auth = Auth()
    waits = [auth.guess_failed("1.2.3.4") for _ in range(11)]
    assert waits[:10] == [0.0] * 10
    assert waits[10] > 0
    assert auth.guess_failed("5.6.7.8") == 0.0


@pytest.mark.parametrize(
    "host, allowed",
    [
        (b"127.0.0.1:8080", True),
        (b"localhost", True),
        (b"LocalHost:1", True),
        (b"[::1]:8080", True),
        (b"[::1]", True),
        (b"limits.internal", True),
        (b"evil.example", False),
        (b"evil.example:8080", False),
        (b"127.0.0.1.evil.example", False),
        (b"", False),
        (None, False),
    ],
)
def test_on_loopback_the_host_must_be_this_machine(host: bytes | None, allowed: bool) -> None:  # noqa: FBT001
    auth = Auth(hosts=hosts_for("127.0.0.1", ["Limits.internal"]))
    assert auth.allows_host(host) is allowed


def test_elsewhere_any_host_will_do_unless_some_are_named() -> None:
    assert hosts_for("0.0.0.0") is None  # noqa: S104
    assert hosts_for("0.0.0.0", ["a.example"]) == frozenset({"a.example"})  # noqa: S104


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST"]
)
def test_loopback_needs_no_token(host: str) -> None:
    require_safe_bind(host, None)
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com", ""])  # noqa: S104
def test_a_public_address_needs_one(host: str, file: Path) -> None:
    with pytest.raises(ConfigError, match="headgate token create"):
        require_safe_bind(host, Auth())
    write_tokens(file, [])
    with pytest.raises(ConfigError, match="headgate token create"):
        require_safe_bind(host, Auth(str(file)))
    write_tokens(file, [new_token("ann", "admin", now=NOW)[1]])
    require_safe_bind(host, Auth(str(file)))


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "is not a token file"),
        ("[]", "is not a token file"),
        ('{"tokens": [{"name": "a"}]}', "is not a token file"),
        (
            '{"tokens": [{"name": "a b", "role": "admin", "sha256": ""}]}',
            "is not a valid token name",
        ),
        ('{"tokens": [{"name": "a", "role": "king", "sha256": ""}]}', "is not a role"),
        ('{"tokens": [{"name": "a", "role": "admin", "sha256": "12"}]}', "no hash"),
    ],
)
def test_an_invalid_token_file_is_refused(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_tokens(str(file))


def test_a_missing_file_is_refused_by_name(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokens\.json: the tokens cannot be read"):
        Auth(str(file))


def test_names_are_used_once() -> None:
    ann = Token(name="ann", role="viewer", sha256="0" * 64)
    with pytest.raises(UsageError, match="already"):
        added((ann,), ann)
    assert without((ann,), "ann") == ()
    with pytest.raises(UsageError, match="no token is named 'bob'"):
        without((ann,), "bob")


def test_a_repr_holds_no_secret(file: Path) -> None:
    text, kept = new_token("ann", "admin", now=NOW)
    write_tokens(file, [kept])
    auth = Auth(str(file))
    assert repr(auth) == "<Auth with 1 tokens>"
    assert text not in repr(vars(auth))


def test_checks_of_pages_elsewhere_are_refused_without_tokens() -> None:
    auth = Auth(hosts=("localhost", "127.0.0.1", "[::1]"))
    ours = (b"http://localhost:8080", b"http://127.0.0.1", b"https://LOCALHOST", b"http://[::1]:80")
    theirs = (
        b"http://evil.example:8080",
        b"null",
        b"",
        b"localhost",
        b"http://localhost.evil.example",
    )
    assert all(auth.allows_origins([(b"host", b"any"), (b"origin", one)]) for one in ours)
    assert not any(auth.allows_origins([(b"origin", one)]) for one in theirs)
    assert not auth.allows_origins([(b"origin", ours[0]), (b"origin", theirs[0])])
    assert auth.allows_origins([(b"host", b"a.proxy.example")])
    assert Auth(hosts=None).allows_origins([(b"origin", theirs[0])])
