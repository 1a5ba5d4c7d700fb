"""Write `settings.md` from the settings themselves: `python docs/reference/write_settings.py`.

`tests/unit/service/test_reference.py` fails when the page is not as this program would write it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headgate.service.settings import SETTINGS

PAGE: Final = Path(__file__).with_name("settings.md")
GROUPS: Final = {
    "Serving": ("host", "port", "resp_port", "workers", "engine", "namespace", "rules"),
    "Checks": (
        *("default_limit", "default_window", "default_algorithm", "thresholds"),
        *("on_error", "nodes", "kill_switch", "bad_paths"),
    ),
    "Connections": (
        *("header_timeout", "body_timeout", "idle_timeout", "max_body", "max_batch_body"),
        *("max_connections_per_ip", "max_lag", "tls_cert", "tls_key", "trusted_proxies"),
    ),
    "Shutdown and logging": ("drain_delay", "drain_timeout", "log_level"),
}
REST: Final = "Management"
HEAD: Final = """\
<!-- Written by write_settings.py; change the settings' own texts. -->

# Settings

The settings of `headgate serve`. Each can be set in three places; the later one in this list wins:

1. a settings file in TOML (`--config FILE`, or `HEADGATE_CONFIG`): `port = 9000`
2. the environment: `HEADGATE_PORT=9000`. Also `REDIS_URL` for the engine, and `PORT`, if Headgate's own variables are
   not set. `HEADGATE_PORT_FILE=/path` reads the value from a file, which is useful for secrets.
3. the command line: `--port 9000`, or `--set idle_timeout=30` for settings without their own option

Write lists with commas in the environment and on the command line, and as lists in the file. An invalid value is
refused before anything starts, and the message names its source. An unknown name is an error in the file and on the
command line, and a warning in the environment. Passwords in URLs are never shown.
"""


def page() -> str:
    """The whole page."""
    known = {name for names in GROUPS.values() for name in names}
    rest = tuple(name for name in SETTINGS if name not in known)
    parts = [HEAD]
    for title, names in [*GROUPS.items(), (REST, rest)]:
        parts.append(f"\n## {title}\n\n| Setting | Default | Meaning |\n| --- | --- | --- |\n")
        parts.extend(f"| `{name}` | {_default(name)} | {_meaning(name)} |\n" for name in names)
    return "".join(parts)


def _default(name: str) -> str:
    value = SETTINGS[name].default
    if value in ("", ()):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _meaning(name: str) -> str:
    text: str = SETTINGS[name].metadata["help"]
    return f"{text[0].upper()}{text[1:]}."


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
