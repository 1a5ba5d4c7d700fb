"""Machines: network namespaces on one switch, any of which a test can cut off from the others.

Each has an address on the switch, at which the others reach it, and one by which the test does; there is no way from
the one network to the other, so a machine that is cut off still answers the test. It takes root.

A namespace lives as long as a process that sleeps in it, which the kernel ends together with the test run, so nothing
is left behind, whatever happens to the test.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

from tests.servers.process import NotInstalledError, Server, wait_until

# Addresses for measurements within one network, which nobody else uses: 2^13 test runs side by side have 16 each.
_FIRST = int(IPv4Address("198.18.0.0"))
_BLOCKS, _BLOCK = 8_192, 16
_MOST = 4


class NotRootError(NotInstalledError):
    """What a test needs is for root only."""


@dataclass(slots=True)
class Machine:
    """One network namespace."""

    number: int
    host: str
    """Its address for the other machines."""
    access: str
    """Its address for the test."""
    pid: int

    def inside(self, command: Sequence[str]) -> list[str]:
        """A command that runs there."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--", *command]


@dataclass(slots=True)
class Machines:
    """Machines and the switch between them."""

    all: list[Machine] = field(default_factory=list)
    switch: Machine = field(default_factory=lambda: Machine(-1, "", "", 0))

    def cut_off(self, machine: Machine) -> None:
        """Take it off the switch: what is sent to it, or by it, is lost, and nobody is told."""
        _run(self.switch.inside(["ip", "link", "set", f"port{machine.number}", "down"]))

    def mend(self) -> None:
        """Put all of them back on the switch."""
        for machine in self.all:
            _run(self.switch.inside(["ip", "link", "set", f"port{machine.number}", "up"]))


@contextlib.contextmanager
def machines(count: int = 3) -> Iterator[Machines]:
    """So many machines on one switch."""
    if os.geteuid() != 0:
        raise NotRootError("network namespaces are made by root; run the tests as root")
    for program, package in (("ip", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            raise NotInstalledError(f"there is no {program}: apt-get install {package}")
    assert count <= _MOST
    first = _FIRST + os.getpid() % _BLOCKS * _BLOCK
    with contextlib.ExitStack() as stack:
        made = Machines()
        made.switch.pid = _namespace(stack)
        _run(made.switch.inside(["ip", "link", "add", "switch", "type", "bridge"]))
        _run(made.switch.inside(["ip", "link", "set", "switch", "up"]))
        for number in range(count):
            here, there = (str(IPv4Address(first + 4 * number + at)) for at in (1, 2))
            machine = Machine(number, f"10.0.0.{number + 1}", there, _namespace(stack))
            _connect(made.switch, machine)
            _open(machine, here)
            made.all.append(machine)
        yield made


def _connect(switch: Machine, machine: Machine) -> None:
    """Put a machine on the switch."""
    port = f"port{machine.number}"
    peer = ["type", "veth", "peer", "name", "eth0", "netns", str(machine.pid)]
    _run(switch.inside(["ip", "link", "add", port, *peer]))
    _run(switch.inside(["ip", "link", "set", port, "master", "switch", "up"]))
    _run(machine.inside(["ip", "address", "add", f"{machine.host}/24", "dev", "eth0"]))
    for device in ("lo", "eth0"):
        _run(machine.inside(["ip", "link", "set", device, "up"]))


def _open(machine: Machine, here: str) -> None:
    """Give the test a way to a machine."""
    name = f"hg{os.getpid()}v{machine.number}"
    peer = ["type", "veth", "peer", "name", "test", "netns", str(machine.pid)]
    _run(["ip", "link", "add", name, *peer])
    _run(["ip", "address", "add", f"{here}/30", "dev", name])
    _run(["ip", "link", "set", name, "up"])
    _run(machine.inside(["ip", "address", "add", f"{machine.access}/30", "dev", "test"]))
    _run(machine.inside(["ip", "link", "set", "test", "up"]))


def _namespace(stack: contextlib.ExitStack) -> int:
    """A process in a new namespace, which ends with the block."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory("-headgate")))
    sleeper = Server(["unshare", "--net", "sleep", "infinity"], folder=folder, ready=lambda: True)
    stack.callback(sleeper.kill)
    sleeper.start()
    own = Path("/proc/self/ns/net").stat().st_ino
    try:
        wait_until(
            lambda: Path(f"/proc/{sleeper.pid}/ns/net").stat().st_ino != own,
            "there is a namespace",
        )
    except (OSError, TimeoutError):
        raise NotInstalledError(f"no network namespaces can be made here: {sleeper.log}") from None
    return sleeper.pid


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotInstalledError(f"{' '.join(command)}: {done.stderr.strip()}")
