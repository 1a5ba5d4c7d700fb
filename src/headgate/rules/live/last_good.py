"""The last good copy: rules on disk that a node can start with while their source is unavailable.

It also remembers their version, so that a node that starts again does not go back to older rules, whichever server it
asks first. The file is replaced as a whole, has a checksum, and can be read by its owner only. If it is torn it is left
out, with a warning: it is a copy, and nothing is lost.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..._atomic_file import replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger("headgate.rules")

MAGIC: Final = "headgate-rules"
FORMAT: Final = 1
CONFIRM_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRules:
    """Rules as they were read, and where they stood."""

    version: int
    revision: int
    documents: Mapping[str, bytes]
    at: float = 0.0
    """When they were last known to be the newest, in seconds since the epoch: the time of the file."""


class LastGood:
    """The copy of one source's rules, in one file."""

    def __init__(self, folder: Path, where: str) -> None:
        self.path = folder / f"rules-{sha256(where.encode()).hexdigest()[:16]}.json"
        self._where = where
        self.failed = False
        """Whether the newest rules could not be kept, and an older copy may be there."""
        self._confirmed = 0.0

    def load(self) -> SavedRules | None:
        """What was kept; nothing if there is none, or none that can be trusted."""
        try:
            content = self.path.read_bytes()
            at = self.path.stat().st_mtime
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("the last good rules in %s cannot be read: %s", self.path, error)
            return None
        header, _, body = content.partition(b"\n")
        if header != _header(body):
            log.warning(
                "the last good rules in %s are damaged or not from Headgate, and not used",
                self.path,
            )
            return None
        found = json.loads(body)
        return SavedRules(
            version=found["version"],
            revision=found["revision"],
            at=at,
            documents={
                name: text.encode("utf-8", "surrogateescape")
                for name, text in found["documents"].items()
            },
        )

    def save(self, saved: SavedRules) -> None:
        """Keep these from now on. That it cannot be done is a warning, once: the rules themselves are fine."""
        try:
            self._write(saved)
        except OSError as error:
            if not self.failed:
                log.warning(
                    "the last good rules cannot be saved in %s, so this node will not start while %s is "
                    "unavailable: %s",
                    self.path,
                    self._where,
                    error,
                )
            self.failed = True
        else:
            self.failed = False

    def confirm(self) -> None:
        """Note that what is kept is still the newest; now and then is enough."""
        now = time.monotonic()
        if now - self._confirmed >= CONFIRM_SECONDS:
            self._confirmed = now
            with contextlib.suppress(OSError):
                os.utime(self.path)

    def _write(self, saved: SavedRules) -> None:
        texts = {
            name: data.decode("utf-8", "surrogateescape") for name, data in saved.documents.items()
        }
        body = json.dumps(
            {
                "where": self._where,
                "version": saved.version,
                "revision": saved.revision,
                "documents": texts,
            }
        ).encode()
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self.path, _header(body) + b"\n" + body, private=True)


def default_folder() -> Path | None:
    """The default folder of copies: `HEADGATE_STATE_DIR`, or the user's state folder."""
    named = os.environ.get("HEADGATE_STATE_DIR")
    if named:
        return Path(named)
    xdg = os.environ.get("XDG_STATE_HOME")
    if xdg and Path(xdg).is_absolute():
        return Path(xdg) / "headgate"
    try:
        return Path.home() / ".local" / "state" / "headgate"
    except RuntimeError:  # A user without a home.
        return None


def _header(body: bytes) -> bytes:
    return f"{MAGIC} {FORMAT} {sha256(body).hexdigest()} {len(body)}".encode()
