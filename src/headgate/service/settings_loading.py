"""Reading settings: the default, the settings file, the environment, the command line; later wins.

Every value keeps its source, and a bad one is refused with that name. A file with an unknown name is refused. The
environment is shared with other programs, so an unknown `HEADGATE_…` there only causes a warning.
`HEADGATE_ENGINE_FILE` (likewise for every setting) names a file that contains the value, as is usual for secrets.
"""

from __future__ import annotations

import difflib
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .._query import number, whole
from ..errors import ConfigError
from .settings import SETTINGS, Settings, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "HEADGATE_"
ALIASES: Final = {"REDIS_URL": "engine", "PORT": "port"}
"""Names that platforms use; `HEADGATE_…` wins over them."""
NOT_SETTINGS: Final = frozenset({"CONFIG", "STATE_DIR", "URL", "TOKEN"})
"""`HEADGATE_…` variables for the command line or for rules, which are not settings of the service."""
MAX_FILE: Final = 1_048_576
YES: Final = frozenset({"1", "true", "yes", "on"})
NO: Final = frozenset({"0", "false", "no", "off"})


def load_settings(
    *,
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    config: str | None = None,
) -> tuple[Settings, list[str]]:
    """The resulting settings, and remarks about how they were given.

    `flags` are the values on the command line by the option before them: `--port`, or `--set idle_timeout`.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    path = config or environ.get(PREFIX + "CONFIG")
    if path:
        for name, value in _read_file(Path(path)).items():
            values[name] = value
            sources[name] = f"{path}"
    remarks: list[str] = []
    for variable, name, text in _read_environ(environ, remarks):
        values[name] = _from_text(name, text, variable)
        sources[name] = variable
    for flag, typed in flags.items():
        if typed is not None:
            name = flag.removeprefix("--set ").removeprefix("--").replace("-", "_")
            values[name] = _from_text(name, typed, flag)
            sources[name] = flag
    return Settings(**values, sources=sources), remarks


def _read_environ(environ: Mapping[str, str], remarks: list[str]) -> list[tuple[str, str, str]]:
    """`(variable, setting, text)`, in increasing priority."""
    found = [(alias, name, environ[alias]) for alias, name in ALIASES.items() if environ.get(alias)]
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name in SETTINGS:
            found.append((variable, name, text))
        elif name.removesuffix("_file") in SETTINGS:
            found.append((variable, name.removesuffix("_file"), _read_secret(variable, text)))
        elif name.upper() not in NOT_SETTINGS:
            near = difflib.get_close_matches(name, SETTINGS, n=1)
            meant = f"; did you mean {PREFIX}{near[0].upper()}?" if near else ""
            remarks.append(f"{variable} is not a setting, and is ignored{meant}")
    return found


def _read_secret(variable: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{variable}: {path} cannot be read: {error}") from None


def _read_file(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, each with the right type."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE + 1)
        if len(text) > MAX_FILE:
            raise ConfigError(f"{path}: a settings file may have at most {MAX_FILE} bytes")
        content = tomllib.loads(text.decode())
    except OSError as error:
        raise ConfigError(f"{path}: it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: it is not text in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: it is not TOML: {error}") from None
    values = {}
    for written, value in content.items():
        name = written.replace("-", "_")
        if name not in SETTINGS:
            near = difflib.get_close_matches(name, SETTINGS, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{path}: there is no setting {written!r}{meant}")
        values[name] = _from_toml(name, value, str(path))
    return values


def _from_toml(name: str, value: Any, source: str) -> Any:
    kind = type(SETTINGS[name].default)
    if kind is tuple and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    if kind is float and type(value) in (int, float):
        return float(value)
    if type(value) is kind:
        return value
    raise refusal(name, source, f"it must be {WORDS[kind]}, not {_shown(name, value)}")


def _from_text(name: str, text: str, source: str) -> Any:
    """Parse a value from the environment or the command line."""
    kind = type(SETTINGS[name].default)
    text = text.strip()
    if kind is str:
        return text
    if kind is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is bool and text.lower() in YES | NO:
        return text.lower() in YES
    with suppress(ValueError):
        if kind is int:
            return whole(text)
        if kind is float:
            return number(text)
    raise refusal(name, source, f"it must be {WORDS[kind]}, not {_shown(name, text)}")


WORDS: Final = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list of strings",
}


def _shown(name: str, value: Any) -> str:
    return "what is there" if SETTINGS[name].metadata["secret"] else repr(value)[:80]
