"""How commands speak to a running service: where it is, who we are, and what its errors mean here.

The address comes from `--url`, else from `HEADGATE_URL`; the token from `--token-file`, else from `HEADGATE_TOKEN`: never from an argument, which
everybody on the machine could read in the list of processes.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from ..errors import ConfigError, HeadgateError, UsageError
from ._terminal import escaped

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

DEFAULT_URL: Final = "http://127.0.0.1:8080"
TIMEOUT: Final = 10.0
MAX_TOKEN_FILE: Final = 4_096
OUR_FAULT: Final = frozenset({400, 413, 415, 422})
"""Answers that say that what we sent makes no sense."""
NO_SUCH_ADDRESS: Final = {404: "not found", 405: "method not allowed"}
ABOUT_ADDRESSES: Final = frozenset({"Not Found", "the page /docs lists what there is"})
"""What a 404 says that is about the address, ours or another's, and not about a key or a rule."""
SPANS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
PLACES: Final = """\
the service is found at --url or HEADGATE_URL (http://127.0.0.1:8080); a token
is read from --token-file or HEADGATE_TOKEN.
"""


class ServiceError(HeadgateError):
    """The service said no, or nothing; `status` is that of its answer, if there was one."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Service:
    """A running service."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise UsageError(f"{url!r:.80} is no address of a service, such as {DEFAULT_URL}")
        try:
            self._port = parts.port
        except ValueError:
            raise UsageError(f"{url!r:.80} has a port that is none") from None
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._base = parts.path.rstrip("/")
        self._token = token
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._base}"
        if token and not self._secure and not _is_this_machine(self._host):
            print("headgate: the token travels in the clear; use https://", file=sys.stderr)

    def get(self, path: str, **query: Any) -> Any:
        """Ask for something."""
        given = {name: value for name, value in query.items() if value is not None}
        return self.ask("GET", f"{path}?{urlencode(given)}" if given else path)

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request, and return what its answer says."""
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        sent = None
        if body is not None:
            sent = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=TIMEOUT)
        try:
            connection.request(method, self._base + path, sent, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise ServiceError(f"{self.url} does not answer: {reason}; does it run?") from error
        finally:
            connection.close()
        return self._understood(f"{method} {self.url}{path}", answer.status, content)

    def _understood(self, asked: str, status: int, content: bytes) -> Any:
        try:
            found = json.loads(content)
        except ValueError:
            raise ServiceError(
                f"{self.url} answered with {status} and no JSON: is it a Headgate service?"
            ) from None
        if status < 400:
            return found
        detail = found.get("detail") if isinstance(found, dict) else None
        if status == 401:
            wants = "does not take this token: use another one" if self._token else "wants a token"
            detail = f"{self.url} {wants}: name its file with --token-file, or set HEADGATE_TOKEN"
        if status == 405 or (status == 404 and detail in ABOUT_ADDRESSES):
            detail = f"{asked}: {NO_SUCH_ADDRESS[status]}; is {self.url} the address of a Headgate service?"
        message = str(detail or f"{self.url} answered with {status}")
        if status in OUR_FAULT:
            raise UsageError(message)
        raise ServiceError(message, status)


def add_service(parser: argparse.ArgumentParser) -> None:
    """The options of every command that speaks to a service."""
    parser.add_argument("--url", metavar="URL", help="where the service is")
    parser.add_argument("--token-file", metavar="FILE", help="read the token from this file")
    add_json(parser)


def add_json(parser: argparse.ArgumentParser) -> None:
    """How every command can be made to speak to programs."""
    parser.add_argument("--json", action="store_true", help="print JSON instead")


def service_of(args: argparse.Namespace) -> Service:
    """The service that the command line and the environment name."""
    url = args.url or os.environ.get("HEADGATE_URL") or DEFAULT_URL
    return Service(url, _token(args.token_file))


def in_path(key: str) -> str:
    """A key as a part of an address."""
    if not key:
        raise UsageError("a key must not be empty")
    return quote(key, safe="")


def seconds_of(text: str) -> float:
    """A length of time as people write it: `90s`, `10m`, `1h`."""
    found = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h|d|w)", text)
    if found is None or not int(found[1]):
        raise UsageError(f"{text!r:.40} is no length of time; write it like 90s, 10m, 1h or 7d")
    return int(found[1]) * SPANS[found[2]]


def print_json(value: Any) -> None:
    """Print a value for programs."""
    print(json.dumps(value, indent=2))


def tell(args: argparse.Namespace, found: Any, words: str) -> None:
    """Say what was done: in words, or what the service answered for programs."""
    if args.json:
        print_json(found)
    else:
        print(escaped(words))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under their heads, each column as wide as it has to be; numbers to the right."""
    texts = [[escaped(str(cell)) for cell in row] for row in rows]
    widths = [max(len(line[at]) for line in [heads, *texts]) for at in range(len(heads))]
    numeric = [all(isinstance(row[at], int | float) for row in rows) for at in range(len(heads))]
    for line in [list(heads), *texts]:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        print("  ".join(cells).rstrip())


def _is_this_machine(host: str) -> bool:
    """Whether nobody else can listen on the way there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token(file: str | None) -> str | None:
    if file is None:
        found = os.environ.get("HEADGATE_TOKEN")
        return _sound_token(found, "HEADGATE_TOKEN") if found else None
    try:
        with Path(file).open(encoding="utf-8") as opened:
            return _sound_token(opened.read(MAX_TOKEN_FILE), file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{file}: the token cannot be read: {reason}") from None


def _sound_token(text: str, where: str) -> str:
    """The token in a text; what cannot stand in a header is none."""
    token = text.strip()
    if not token or " " in token or not (token.isascii() and token.isprintable()):
        raise ConfigError(f"{where} holds no token: one is a word, such as 'headgate token' makes")
    return token
