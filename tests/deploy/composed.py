"""The services of a compose file as processes on this machine, with the very commands and variables of the file.

A container has addresses and folders of its own. Here every port that the file names becomes a free one on 127.0.0.1,
and every volume a folder: `etcd1:2379` is replaced wherever it is written, and so is `/etc/headgate`. Nothing else is.
"""

from __future__ import annotations

import re
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

import yaml

from tests.deploy import dockerfile
from tests.servers.process import HOST, free_ports

if TYPE_CHECKING:
    from pathlib import Path

HEADGATE = dockerfile.read(dockerfile.DEPLOY / "Dockerfile")[-1]
SERVES_ON = "8080"


class Composed:
    """A compose file. `folder` holds its volumes."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.services: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text())["services"]
        self.folder = folder
        self._ports: dict[tuple[str, str], int] = {}

    def port(self, service: str, port: str) -> int:
        """The free port that stands for one of a service."""
        if (service, port) not in self._ports:
            self._ports[service, port] = free_ports(1)[0]
        return self._ports[service, port]

    def volume(self, service: str, target: str) -> Path:
        """The folder that stands for what a service has mounted there."""
        (name,) = (source for source, at in self._mounts(service) if at == target)
        made = self.folder / name
        made.mkdir(exist_ok=True)
        return made

    def command(self, service: str) -> list[str]:
        """What the container runs: the file's command, or the image's."""
        said = self.services[service]
        image = HEADGATE.command if said["image"] == "headgate" else []
        words = [*said.get("entrypoint", image[:1]), *said.get("command", image[1:])]
        if words[0] == "headgate":
            words = [sys.executable, "-m", "headgate", *words[1:]]
        return [self._placed(service, word) for word in words]

    def environment(self, service: str) -> dict[str, str]:
        """The variables of the image, if it is ours, and those of the file."""
        said = self.services[service]
        ours = {**HEADGATE.environment, "HEADGATE_PORT": SERVES_ON}
        del ours["PATH"]  # The image's; here it is that of the tests.
        found = (ours if said["image"] == "headgate" else {}) | {
            name: str(value) for name, value in said.get("environment", {}).items()
        }
        return {
            name: str(self.port(service, value))
            if name.endswith("_PORT")
            else self._placed(service, value)
            for name, value in found.items()
        }

    def _mounts(self, service: str) -> list[tuple[str, str]]:
        mounts = []
        for volume in self.services[service].get("volumes", []):
            source, target = volume.split(":")[:2]
            mounts.append((source, target))
        for at, temporary in enumerate(self.services[service].get("tmpfs", [])):
            mounts.append((f"{service}-tmpfs{at}", temporary.split(":")[0]))
        return mounts

    @cached_property
    def _address(self) -> re.Pattern[str]:
        return re.compile(rf"\b({'|'.join(self.services)}|0\.0\.0\.0):(\d+)\b")

    def _placed(self, service: str, text: str) -> str:
        def here(found: re.Match[str]) -> str:
            name = service if found[1] == "0.0.0.0" else found[1]  # noqa: S104 - as it is written there
            return f"{HOST}:{self.port(name, found[2])}"

        for _, target in self._mounts(service):
            if target != "/tmp":  # noqa: S108 # Everybody has that one.
                text = text.replace(target, str(self.volume(service, target)))
        return self._address.sub(here, text)
