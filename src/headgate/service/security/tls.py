"""TLS on the listener: the certificate is reloaded when its files change.

Open connections keep the certificate they began with; new ones get the new one. Files that do not work together (one is
half written, or the key belongs to another certificate) change nothing: the old certificate stays, and the log says
why.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from ...errors import ConfigError


class Certificate:
    """The certificate and key of a listener."""

    def __init__(self, cert: str, key: str) -> None:
        self._cert = Path(cert)
        self._key = Path(key)
        self._log = logging.getLogger("headgate.service")
        try:
            self._seen = self._stamps()
            self.context = self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except OSError as error:  # Includes everything that OpenSSL refuses.
            raise ConfigError(f"{cert} and {key} cannot be used: {error}") from None

    def refresh(self) -> bool:
        """Read the files again if they have changed; returns whether there is a new certificate."""
        try:
            stamps = self._stamps()
            if stamps == self._seen:
                return False
            self._seen = stamps
            # A trial first: a load that fails leaves a context half changed.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except OSError as error:
            self._log.error("the new certificate cannot be used, the old one stays: %s", error)
            return False
        self._log.info("the certificate was reloaded", extra={"certificate": str(self._cert)})
        return True

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._cert, self._key)
        return context

    def _stamps(self) -> list[tuple[int, int, int]]:
        found = [path.stat() for path in (self._cert, self._key)]
        return [(one.st_mtime_ns, one.st_size, one.st_ino) for one in found]
