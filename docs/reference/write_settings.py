"""Write `settings.md` from the settings themselves: `python docs/reference/write_settings.py`.

`tests/unit/service/test_reference.py` fails when the page is not as this program would write it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headgate.service.settings import SETTINGS

PAGE: Final = Path(__file__).with_name("settings.md")
GROUPS: Final = {
    "Serving": ("host", "port", "workers", "engine", "namespace", "rules"),
    "Checks": ("default_limit", "default_window", "default_algorithm", "on_error", "bad_paths"),
    "Connections": (
        *("header_timeout", "body_timeout", "idle_timeout", "max_body", "max_batch_body"),
        *("max_connections_per_ip", "tls_cert", "tls_key", "trusted_proxies"),
    ),
    "Ending and logging": ("drain_delay", "drain_timeout", "log_level"),
}
REST: Final = "Managing"
HEAD: Final = """\
<!-- Written by write_settings.py; change the settings' own texts. -->

# Settings

What `headgate serve` can be told. Each setting has one name, and three places where it can be given; later wins:

1. a settings file in TOML (`--config FILE`, or `HEADGATE_CONFIG`): `port = 9000`
2. the environment: `HEADGATE_PORT=9000`. Also `REDIS_URL` for the engine and `PORT`, if our own are not set. `HEADGATE_PORT_FILE=/path` reads the value from a
   file, as secrets are handed over.
3. the command line: `--port 9000`, and for those without an option of their own `--set idle_timeout=30`

Lists are given with commas in the environment and on the command line, and as lists in the file. A bad value is refused before anything starts, with the
name of the place that it came from. A name that is unknown is refused in the file and on the command line, and pointed out in the
environment. Passwords in URLs are shown nowhere.
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
