"""Settings: where values come from, who wins, and what is refused with which source."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from headgate import ConfigError, UsageError
from headgate.service.promises import promises
from headgate.service.security.redaction import redacted
from headgate.service.settings import SETTINGS, Settings
from headgate.service.settings_loading import load_settings

if TYPE_CHECKING:
    from pathlib import Path


def load(
    environ: dict[str, str] | None = None, config: Path | None = None, **flags: str
) -> Settings:
    found, _ = load_settings(
        flags={f"--{name}": text for name, text in flags.items()},
        environ=environ or {},
        config=None if config is None else str(config),
    )
    return found


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text('port = 1001\nlog_level = "debug"\ndefault-limit = 7\n')
    environ = {"PORT": "1002", "HEADGATE_LOG_LEVEL": "error"}
    settings = load(environ, file, port="1003")
    assert (settings.port, settings.log_level, settings.default_limit) == (1003, "error", 7)
    assert settings.sources == {
        "port": "--port",
        "log_level": "HEADGATE_LOG_LEVEL",
        "default_limit": str(file),
    }
    assert settings.source("host") == "the default"


def test_our_own_variable_wins_over_that_of_the_platform() -> None:
    environ = {"PORT": "1", "HEADGATE_PORT": "2", "REDIS_URL": "redis://a"}
    assert (load(environ).port, load(environ).engine) == (2, "redis://a")
    assert load({**environ, "HEADGATE_ENGINE": "redis://b"}).engine == "redis://b"


def test_the_settings_file_can_be_named_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text("port = 1001\n")
    assert load({"HEADGATE_CONFIG": str(file)}).port == 1001


def test_a_value_can_be_read_from_a_file_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("redis://:canary@db/0\n")
    settings = load({"HEADGATE_ENGINE_FILE": str(file)})
    assert settings.engine == "redis://:canary@db/0"
    assert "canary" not in repr(settings)


@pytest.mark.parametrize(
    "text, name, value",
    [
        ("10.0.0.0/8, 192.0.2.0/24", "trusted_proxies", ("10.0.0.0/8", "192.0.2.0/24")),
        ("0.5", "idle_timeout", 0.5),
        ("yes", "check_needs_token", True),
        ("off", "check_needs_token", False),
        (" 8081 ", "port", 8081),
    ],
)
def test_text_becomes_what_the_setting_is(text: str, name: str, value: object) -> None:
    assert getattr(load({f"HEADGATE_{name.upper()}": text}), name) == value


@pytest.mark.parametrize(
    "environ, message",
    [
        ({"HEADGATE_PORT": "٨٠"}, "port (from HEADGATE_PORT): it must be a whole number, not '٨٠'"),
        ({"HEADGATE_PORT": "8_0"}, "it must be a whole number"),
        ({"HEADGATE_PORT": "-1"}, "it must be between 0 and 65535, not -1"),
        ({"HEADGATE_IDLE_TIMEOUT": "nan"}, "it must be a number"),
        ({"HEADGATE_IDLE_TIMEOUT": "inf"}, "it must be a number"),
        ({"HEADGATE_IDLE_TIMEOUT": "1e9"}, "it must be a number"),
        ({"HEADGATE_CHECK_NEEDS_TOKEN": "maybe"}, "it must be true or false"),
        (
            {"HEADGATE_LOG_LEVEL": "loud"},
            "log_level (from HEADGATE_LOG_LEVEL): it must be one of debug, info, warning, error, not 'loud'",
        ),
        ({"HEADGATE_DEFAULT_ALGORITHM": "gcra"}, "it must be one of adaptive"),
        ({"HEADGATE_ON_ERROR": "pass"}, "it must be one of fallback, open, closed, raise"),
        ({"HEADGATE_HEARTBEAT": "30"}, "it must be shorter than node_ttl"),
        ({"HEADGATE_TRUSTED_PROXIES": "10.0.0.1/8"}, "trusted_proxies (from HEADGATE_TRUSTED"),
        ({"HEADGATE_DEFAULT_WINDOW": "0"}, "a window must last between 1 ms and 366 days"),
        ({"HEADGATE_WORKERS": "2"}, "give them an engine to share"),
        ({"HEADGATE_TLS_KEY": "/key.pem"}, "a certificate and its key belong together"),
        ({"HEADGATE_HOST": "::"}, "is reachable from other machines"),
        ({"HEADGATE_ENGINE_FILE": "/nowhere"}, "HEADGATE_ENGINE_FILE: /nowhere cannot be read"),
    ],
)
def test_a_bad_value_is_refused_with_its_source(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(environ)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "text, message",
    [
        ("port = '80'", "port (from {}): it must be a whole number, not '80'"),
        ("port = true", "it must be a whole number, not True"),
        ("prot = 80", "there is no setting 'prot'; did you mean 'port'?"),
        ("sources = {}", "there is no setting 'sources'"),
        ("trusted_proxies = [1]", "it must be a list of strings"),
        ("engine = 5", "engine (from {}): it must be text, not what is there"),
        ("port = ", "it is not TOML"),
        ("port = 1\nport = 2", "it is not TOML"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load({}, file)
    assert message.format(file) in str(refused.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "headgate.toml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not text in UTF-8"):
        load({}, file)


def test_an_unknown_variable_is_pointed_out_and_ignored() -> None:
    environ = {"HEADGATE_PROT": "1", "HEADGATE_TOKEN": "x", "HEADGATE_URL": "y", "OTHER": "z"}
    _, remarks = load_settings(flags={}, environ=environ)
    assert remarks == [
        "HEADGATE_PROT is not a setting, and is ignored; did you mean HEADGATE_PORT?"
    ]


def test_settings_can_be_sent_to_worker_processes() -> None:
    settings = load({"HEADGATE_ENGINE": "redis://db", "HEADGATE_WORKERS": "4"})
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301 - our own


@pytest.mark.parametrize(
    "url, shown",
    [
        ("redis://:secret@db/0", "redis://:***@db/0"),
        ("redis://user:se:cret@db", "redis://user:***@db"),
        ("redis://db?secret=abc&deadline=1", "redis://db?secret=***&deadline=1"),
        (
            "redis+sentinel://:p@a,b/m?sentinel_password=x",
            "redis+sentinel://:***@a,b/m?sentinel_password=***",
        ),
        ("memory://", "memory://"),
        ("rules.yaml", "rules.yaml"),
        ("", ""),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert redacted(url) == shown


def test_promises_follow_the_settings() -> None:
    def told(**settings: Any) -> dict[str, str]:
        return dict(promises(Settings(**settings)))

    assert "once more" in told()["restart"]
    assert "state file" in told(engine="memory://?state_file=/x")["restart"]
    assert "failover" in told(engine="redis+sentinel://a/m")
    assert "closed unless" in told(engine="redis://a", on_error="closed")["store down"]
    assert "store down" not in told()


def test_every_setting_has_a_help_text() -> None:
    assert all(len(one.metadata["help"]) > 10 for one in SETTINGS.values())


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("idle_timeout", "nan", "it must be a number, not 'nan'"),
        ("idle_timeout", "1e3", "it must be a number, not '1e3'"),
        ("idle_timeout", "-1", "it must be between 0.01 and 86400, not -1.0"),
        ("max_body", "-1", "it must be between 256 and 16777216, not -1"),
        ("max_body", "1.5", "it must be a whole number, not '1.5'"),
        ("default_window", "-1", "a window must last"),
    ],
)
def test_a_number_out_of_bounds_is_reported_with_its_bounds_and_its_text(
    name: str, text: str, message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        load_settings(flags={f"--set {name}": text}, environ={})
    assert message in str(refused.value)
    assert str(refused.value).startswith(f"{name} (from --set {name}): ")


@pytest.mark.parametrize(
    "host, url",
    [
        ("[::1]", "http://[::1]:1"),
        ("::1", "http://[::1]:1"),
        ("LOCALHOST", "http://LOCALHOST:1"),
        ("127.1.2.3", "http://127.1.2.3:1"),
    ],
)
def test_this_machine_is_known_however_it_is_written(host: str, url: str) -> None:
    assert Settings(host=host).url(1) == url
