"""URLs of places that keep rules: what they mean, and what is wrong with a bad one."""

from pathlib import Path

import pytest

from headgate.errors import ConfigError
from headgate.rules.sources.location import parse_location, uses_tls


@pytest.mark.parametrize(
    "where, path",
    [
        ("rules.yaml", "rules.yaml"),
        ("./a b/rules.yaml", "./a b/rules.yaml"),
        ("/etc/rules.yaml", "/etc/rules.yaml"),
        ("file:rules.yaml", "rules.yaml"),
        ("file:///etc/rules.yaml", "/etc/rules.yaml"),
        ("file://localhost/etc/a%20b.yaml", "/etc/a b.yaml"),
        (Path("rules.yaml"), "rules.yaml"),
    ],
)
def test_a_file_is_a_path_or_a_url(where: str | Path, path: str) -> None:
    location = parse_location(where)
    assert (location.scheme, location.path) == ("file", path)


def test_servers_have_default_ports_and_a_default_path() -> None:
    location = parse_location("zookeeper://one,two:2182")
    assert location.hosts == ("one:2181", "two:2182")
    assert location.path == "/config/ratelimit/rules"
    assert str(location) == "zookeeper://one:2181,two:2182/config/ratelimit/rules"
    assert parse_location("etcd://[::1]/rules/").hosts == ("[::1]:2379",)
    assert parse_location("etcd://[::1]:9/rules/").hosts == ("[::1]:9",)


def test_users_passwords_and_options_are_read() -> None:
    location = parse_location(
        "zookeeper://ann:p%40ss%2Fword@host/a/b?session_timeout=2.5&timeout=1&acl=readable&ca_file=ca.pem"
    )
    assert (location.username, location.password, location.path) == ("ann", "p@ss/word", "/a/b")
    assert location.options == {
        "session_timeout": 2.5,
        "timeout": 1.0,
        "acl": "readable",
        "ca_file": "ca.pem",
    }
    assert "p@ss" not in repr(location) + str(location)


def test_tls_is_used_when_it_is_asked_for_or_needed() -> None:
    assert not uses_tls(parse_location("etcd://host"))
    assert uses_tls(parse_location("etcd://host?tls=yes"))
    assert uses_tls(parse_location("etcd://host?ca_file=ca.pem"))
    assert uses_tls(parse_location("etcd://host?cert_file=a&key_file=b"))


def test_a_password_can_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("from the file\n")
    location = parse_location(f"etcd://ann@host?password_file={file}")
    assert location.password == "from the file"  # noqa: S105
    assert "password_file" not in location.options


@pytest.mark.parametrize(
    "where, message",
    [
        ("", "the source of the rules is empty"),
        ("file:", "file: needs a path"),
        ("file://host/rules.yaml", "write a file as file:rules.yaml"),
        (
            "redis://host",
            "'redis' is not a source of rules; use file:, zookeeper:// or etcd://",
        ),
        ("etcd://host:99999", "a port in the etcd URL must be a number from 1 to 65535"),
        ("etcd://host:x", "a port in the etcd URL must be a number from 1 to 65535"),
        ("etcd://one,,two", "URL has no host"),
        ("etcd://host//a", "has an empty part"),
        ("etcd://host/a/../b", "has an empty part"),
        ("etcd://host?nodes=3", "there is no option 'nodes'; the options are timeout, tls"),
        ("etcd://host?acl=open", "there is no option 'acl'"),
        ("zookeeper://host?acl=mine", "the option 'acl' must be one of private, readable, open"),
        ("etcd://host?timeout=0", "'timeout' must be a number of seconds from 0.05 to 3600"),
        ("etcd://host?timeout=nan", "'timeout' must be a number of seconds from 0.05 to 3600"),
        ("etcd://host?timeout=1&timeout=2", "the option 'timeout' is given twice"),
        ("etcd://host?tls=no&ca_file=x", "ca_file needs TLS, but tls=no turns it off"),
        ("etcd://host?cert_file=x", "cert_file and key_file belong together"),
        ("etcd://ann@host", "a user name and a password belong together"),
        ("etcd://ann:pw@host?password_file=x", "the password is given twice"),
        ("etcd://ann@host?password_file=/no/such", "the password_file /no/such cannot be read"),
        ("etcd://ann:canary#x@host", "in a name or password write / as %2F"),
        ("etcd://ann:cana/ry@host", "in a name or password write / as %2F"),
        ("etcd://ann:canary[x@host", "check the brackets of its address"),
    ],
)
def test_a_bad_url_is_reported_without_its_password(where: str, message: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse_location(where)
    assert message in str(told.value)
    assert "canary" not in str(told.value)
