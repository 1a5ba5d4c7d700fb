"""How commands call a running service: its address, the token, and what its errors mean.

The address comes from `--url`, else from `HEADGATE_URL`; the token from `--token-file`, else from `HEADGATE_TOKEN`:
never from an argument, which every local user could read in the process list.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from ..errors import ConfigError, HeadgateError, UsageError
from ..rate import UNIT_NAMES, US_PER_UNIT
from ._terminal import escaped

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

DEFAULT_URL: Final = "http://127.0.0.1:8080"
TIMEOUT: Final = 10.0
MAX_TOKEN_FILE: Final = 4_096
INVALID_REQUEST: Final = frozenset({400, 413, 415, 422})
"""Statuses that mean that the request was invalid."""
NO_SUCH_ADDRESS: Final = {404: "not found", 405: "method not allowed"}
ABOUT_ADDRESSES: Final = frozenset({"Not Found", "the page /docs lists all endpoints"})
"""Details of a 404 about the address, ours or another server's, and not about a key or a rule."""
PLACES: Final = """\
The service's address is --url or HEADGATE_URL (http://127.0.0.1:8080). The
token comes from --token-file or HEADGATE_TOKEN.
"""


class ServiceError(HeadgateError):
    """The service refused, or did not answer; `status` is that of its answer, if there was one."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Service:
    """A running service."""

    def __init__(self, url: str, token: str | None, ca_file: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise UsageError(f"{url!r:.80} is not the address of a service, such as {DEFAULT_URL}")
        try:
            self._port = parts.port
        except ValueError:
            raise UsageError(f"{url!r:.80} has an invalid port") from None
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._base = parts.path.rstrip("/")
        self._token = token
        self._trusted = _trusted(ca_file) if self._secure else None
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._base}"
        if token and not self._secure and not _is_this_machine(self._host):
            print("headgate: the token is sent unencrypted; use https://", file=sys.stderr)

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
        connection = self._connection()
        try:
            connection.request(method, self._base + path, sent, headers)
            answer = connection.getresponse()
            content = answer.read()
        except ssl.SSLCertVerificationError as error:
            raise ServiceError(
                f"the certificate of {self.url} is not trusted: {error.verify_message}; "
                "if it comes from your own CA, give that CA's certificate with --ca-file"
            ) from error
        except ssl.SSLError as error:
            reason = error.reason or str(error)
            raise ServiceError(f"no TLS with {self.url}: {reason}; does it serve https?") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ServiceError(f"{self.url} does not answer: {reason}; is it running?") from error
        finally:
            connection.close()
        return self._understood(f"{method} {self.url}{path}", answer.status, content)

    def _connection(self) -> http.client.HTTPConnection:
        if self._trusted is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=TIMEOUT, context=self._trusted
        )

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
            wants = "does not accept this token" if self._token else "needs a token"
            detail = f"{self.url} {wants}: use --token-file, or set HEADGATE_TOKEN"
        if status == 405 or (status == 404 and detail in ABOUT_ADDRESSES):
            detail = f"{asked}: {NO_SUCH_ADDRESS[status]}; is {self.url} the address of a Headgate service?"
        message = str(detail or f"{self.url} answered with {status}")
        if status in INVALID_REQUEST:
            raise UsageError(message)
        raise ServiceError(message, status)


def add_service(parser: argparse.ArgumentParser) -> None:
    """The options of every command that calls a service."""
    parser.add_argument("--url", metavar="URL", help="the address of the service")
    parser.add_argument("--token-file", metavar="FILE", help="read the token from this file")
    parser.add_argument("--ca-file", metavar="FILE", help="trust this certificate authority (PEM)")
    add_json(parser)


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option for JSON output."""
    parser.add_argument("--json", action="store_true", help="print JSON instead")


def service_of(args: argparse.Namespace) -> Service:
    """The service given by the command line and the environment."""
    url = args.url or os.environ.get("HEADGATE_URL") or DEFAULT_URL
    return Service(url, _token(args.token_file), args.ca_file)


def in_path(key: str) -> str:
    """A key, escaped for a URL path."""
    if not key:
        raise UsageError("a key must not be empty")
    return quote(key, safe="")


def seconds_of(text: str) -> float:
    """A length of time as in rates: `90s`, `10 minutes`, `hour`."""
    found = re.fullmatch(r"([0-9]{1,9})? *([a-z]+)", text.strip(), re.IGNORECASE | re.ASCII)
    word = "" if found is None else found[2].lower()
    unit = UNIT_NAMES.get(word) or UNIT_NAMES.get(word.removesuffix("s"))
    if found is None or unit is None or (found[1] and not int(found[1])):
        raise UsageError(
            f"{text!r:.40} is not a duration; write it as in rates: 90s, 10 minutes, 1h, day"
        )
    return int(found[1] or 1) * US_PER_UNIT[unit] / 1_000_000


def print_json(value: Any) -> None:
    """Print a value for programs."""
    print(json.dumps(value, indent=2))


def print_result(args: argparse.Namespace, found: Any, words: str) -> None:
    """Print what was done, or the service's answer as JSON."""
    if args.json:
        print_json(found)
    else:
        print(escaped(words))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under their headings, each column as wide as needed; numbers are right-aligned."""
    texts = [[escaped(str(cell)) for cell in row] for row in rows]
    widths = [max(len(line[at]) for line in [heads, *texts]) for at in range(len(heads))]
    numeric = [
        all(isinstance(row[at], int | float) or row[at] == "?" for row in rows)
        for at in range(len(heads))
    ]
    for line in [list(heads), *texts]:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        print("  ".join(cells).rstrip())


def _is_this_machine(host: str) -> bool:
    """Whether the connection cannot be overheard: HTTPS, or this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _trusted(ca_file: str | None) -> ssl.SSLContext:
    """Which CAs to trust: the system's, or the one in the file."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        reason = "it holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigError(f"{ca_file}: the certificate cannot be read: {reason}") from None


def _token(file: str | None) -> str | None:
    if file is None:
        found = os.environ.get("HEADGATE_TOKEN")
        return _checked_token(found, "HEADGATE_TOKEN") if found else None
    try:
        with Path(file).open(encoding="utf-8") as opened:
            return _checked_token(opened.read(MAX_TOKEN_FILE), file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{file}: the token cannot be read: {reason}") from None


def _checked_token(text: str, where: str) -> str:
    """The token in a string; it must be valid in a header."""
    token = text.strip()
    if not token or " " in token or not (token.isascii() and token.isprintable()):
        raise ConfigError(f"{where} has no valid token; 'headgate token create' makes one")
    return token
