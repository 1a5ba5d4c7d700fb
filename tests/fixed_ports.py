"""Notes which ports on this machine a test asks for by number, so that the run can refuse them.

A fixed port may be taken: by a service that somebody started in another terminal, or by another run of these tests.
Ports that are drawn (`free_ports`, or 0 for the kernel's choice) lie above all that people use by habit, so the number
alone tells them apart.

Port 1 is for tests and examples that need a place where nobody listens: it belongs to a protocol that nobody speaks any
more.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_DRAWN: Final = 11_000
"""Where `tests.servers.process.free_ports` begins; the kernel's own ports lie far above."""
NOBODY: Final = 1
_THIS_MACHINE: Final = ("127.", "localhost", "::1", "0.0.0.0", "::")  # noqa: S104 - compared with
_OPENING: Final = ("bind", "connect", "connect_ex")

used: list[str] = []
"""What was asked for since the list was last cleared."""


def watch() -> None:
    """Have every socket of this process note a fixed port in `used`; calls go on as before."""
    for name in _OPENING:
        setattr(socket.socket, name, _noting(name, getattr(socket.socket, name)))


def is_fixed(address: object) -> bool:
    """Whether an address is on this machine and has a port that nobody drew."""
    match address:
        case (str(host), int(port), *_):
            here = host == "" or host.lower().startswith(_THIS_MACHINE)
            return here and NOBODY < port < FIRST_DRAWN
    return False


def _noting(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    def noting(self: socket.socket, address: Any) -> Any:
        if is_fixed(address):
            used.append(f"{name} {address!r}")
        return plain(self, address)

    return noting
