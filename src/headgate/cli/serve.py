"""`headgate serve`: start the service, and print its addresses and guarantees."""

from __future__ import annotations

import difflib
import os
import sys
from typing import TYPE_CHECKING, Final

from ..errors import ConfigError, UsageError

if TYPE_CHECKING:
    import argparse

    from ..service.settings import Settings

NAME: Final = "serve"
HELP: Final = "start the service"
EPILOG: Final = """\
Every setting can also be set in a file (--config) or in the environment
(HEADGATE_ENGINE, HEADGATE_PORT, ...; also REDIS_URL and PORT). The command
line overrides the environment, which overrides the file.

examples:
  headgate serve
  headgate serve --port 9000 --rules rules.yaml
  headgate serve --engine redis://localhost --workers 4
"""
FLAGS: Final = (
    ("engine", "URL", "where counts live: memory:// (the default), redis://..."),
    ("rules", "SOURCE", "a rules file or source; without one, the starter rules"),
    ("host", "ADDRESS", "listen on this address (127.0.0.1)"),
    ("port", "N", "listen on this port (8080); 0 takes a free one"),
    ("resp-port", "N", "speak the Redis protocol on this port (none)"),
    ("workers", "N", "the number of processes (1); more need a shared engine"),
    ("namespace", "TEXT", "separate these keys from those of other namespaces"),
    ("trusted-proxies", "NETWORKS", "trust X-Forwarded-For from these networks"),
    ("tokens", "FILE", "the file of hashed access tokens"),
    ("tls-cert", "FILE", "serve HTTPS with this certificate chain"),
    ("tls-key", "FILE", "and its private key"),
    ("log-level", "LEVEL", "debug, info (the default), warning or error"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.usage = "headgate serve [--engine URL] [--rules SOURCE] [--port N] [...]"
    parser.epilog = EPILOG
    parser.add_argument("--config", metavar="FILE", help="read settings from this TOML file")
    for flag, metavar, text in FLAGS:
        parser.add_argument(f"--{flag}", metavar=metavar, help=text)
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="any other setting; docs/reference/settings.md lists them",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal stops it."""
    try:
        from ..service import settings_loading  # noqa: PLC0415 - large, and an extra
        from ..service.process import supervisor  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("headgate"):
            raise
        raise ConfigError(
            f"the service needs an extra ({error.name} is missing): pip install 'headgate[service]'"
        ) from error
    settings, remarks = settings_loading.load_settings(
        flags=_flags(args), environ=os.environ, config=args.config
    )
    for remark in remarks:
        print(f"headgate: {remark}", file=sys.stderr)
    return supervisor.serve(settings, on_listening=lambda port: _announce(settings, port))


def _flags(args: argparse.Namespace) -> dict[str, str | None]:
    """The given settings, by option."""
    from ..service.settings import SETTINGS  # noqa: PLC0415

    flags: dict[str, str | None] = {
        f"--{flag}": getattr(args, flag.replace("-", "_")) for flag, _, _ in FLAGS
    }
    for text in args.set:
        name, equals, value = text.partition("=")
        name = name.replace("-", "_")
        if not equals or name not in SETTINGS:
            written = text.partition("=")[0]
            if name in SETTINGS:
                raise UsageError(
                    f"--set {written!r}: the value is missing; write --set {written}=VALUE"
                )
            near = difflib.get_close_matches(name, SETTINGS, n=1)
            meant = f"did you mean {near[0]!r}?" if near else "write --set NAME=VALUE"
            raise UsageError(f"--set {written!r}: there is no such setting; {meant}")
        flags[f"--set {name}"] = value
    return flags


def _announce(settings: Settings, port: int) -> None:
    """Print the addresses and the guarantees."""
    from .. import __version__  # noqa: PLC0415
    from ..service.promises import promises  # noqa: PLC0415

    url = settings.url(port)
    lines = [
        f"Headgate {__version__} listens on {url}",
        "",
        *(f"  {name:<12}{value}" for name, value in _places(settings, url).items()),
        "",
        "It promises:",
        *(f"  {about:<12}{text}" for about, text in promises(settings)),
        "",
        "Ctrl-C or SIGTERM stops it without failing a request.",
    ]
    print("\n".join(lines), flush=True)


def _places(settings: Settings, url: str) -> dict[str, str]:
    resp = {"redis": f"{settings.address(settings.resp_port)}"} if settings.resp_port else {}
    return {
        "page": f"{url}/",
        "checks": f"POST {url}/check",
        **resp,
        "API": f"{url}/docs",
        "health": f"{url}/health",
        "metrics": f"{url}/metrics",
        "counts": settings.shown("engine"),
        "rules": settings.shown("rules") or "the starter rules",
        "workers": str(settings.workers),
    }
