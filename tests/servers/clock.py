"""The wall clock of one process, in the hands of a test.

An engine trusts the clock of its store, and an operator or a time daemon can step that clock. Here
a test does it, to one running process and to nothing else on the machine; `clock_shim.c` says how.
"""

import shutil
import struct
import subprocess
import time
from pathlib import Path

from tests.servers.process import NotInstalledError

_SOURCE = Path(__file__).with_name("clock_shim.c")


class MovableClock:
    """A wall clock `offset_s` away from the true one, for the processes given its environment."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise NotInstalledError("there is no C compiler for the clock shim: install gcc")
        library = folder / "clock_shim.so"
        subprocess.run(
            [compiler, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", _SOURCE, "-o", library],
            check=True,
        )
        self._offset = folder / "clock_offset_ns"
        self._offset.write_bytes(struct.pack("q", 0))
        # For the server's `environment`, or that of any other dynamically linked program.
        self.environment = {
            "LD_PRELOAD": str(library),
            "HEADGATE_CLOCK_OFFSET": str(self._offset),
        }

    @property
    def offset_s(self) -> float:
        """Seconds that the clock is ahead of the true one; negative when it is behind."""
        (offset_ns,) = struct.unpack("q", self._offset.read_bytes())
        return float(offset_ns / 1e9)

    @offset_s.setter
    def offset_s(self, offset_s: float) -> None:
        # Written in place: the process has mapped this very file.
        with self._offset.open("r+b", buffering=0) as file:
            file.write(struct.pack("q", round(offset_s * 1e9)))
        # Valkey reads the wall clock once a millisecond and fills in from the monotonic one.
        time.sleep(0.002)

    def drifting(self, per_mille: int) -> dict[str, str]:
        """The environment of a process whose monotonic clock counts so many milliseconds in a second."""
        return {**self.environment, "HEADGATE_CLOCK_PER_MILLE": str(per_mille)}

    def step(self, seconds: float) -> None:
        """Move the clock forward, or back if `seconds` is negative."""
        self.offset_s += seconds
