"""The listening socket: how it is opened, and how new connections are refused before it is closed.

Closing a listening socket resets connections made after the last `accept`, and no order of calls avoids that: there is
always an instant between the two. So no connection may arrive in that instant. A filter in the kernel drops the first
packet (SYN) of new connections, while those that had begun can still be completed and accepted. A client that was
turned away has sent nothing: its kernel tries again after a second, and is then refused, or accepted by the next
process on this port.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import socket
import struct
import sys
from typing import TYPE_CHECKING, Final

from ...errors import ConfigError
from ..settings import refusal

if TYPE_CHECKING:
    from ..settings import Settings

BACKLOG: Final = 2_048

SO_ATTACH_FILTER: Final = 26  # Linux only; not in the standard library.
TCP_FLAGS: Final = 13
"""The offset of the flags in a TCP header, and the flag that requests a connection."""
SYN: Final = 0x02
DROP, PASS = 0, 0xFFFF_FFFF

# Classic BPF: code, how many to skip if true, if false, operand.
REFUSE_SYN: Final = (
    (0x30, 0, 0, TCP_FLAGS),  # Load the byte with the flags.
    (0x45, 0, 1, SYN),  # If SYN is set continue, else skip one.
    (0x06, 0, 0, DROP),
    (0x06, 0, 0, PASS),
)


def listen_all(settings: Settings) -> list[socket.socket]:
    """A listening socket for each protocol in the settings: HTTP first, then the Redis protocol."""
    sockets = [listen(settings)]
    if settings.resp_port:
        try:
            sockets.append(listen(settings, "resp_port"))
        except BaseException:
            sockets[0].close()
            raise
    return sockets


def listen(settings: Settings, name: str = "port") -> socket.socket:
    """A listening socket according to the settings; `name` is the setting with the port."""
    port = getattr(settings, name)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. uvloop sets it anyway; asyncio does not if it has not made the socket.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((settings.host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        reason = error.strerror or error
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise refusal(
                "host",
                settings.source("host"),
                f"{settings.host!r} is not an address of this machine: {reason}",
            ) from None
        raise ConfigError(
            f"cannot listen on port {port} of {settings.host} (from {settings.source(name)}): "
            f"{reason}; choose another with --{name.replace('_', '-')}"
        ) from None
    sock.settimeout(0)
    return sock


def refuse_new_connections(sock: socket.socket) -> bool:
    """Refuse new connections to this socket, in every process; false if the system cannot."""
    if sys.platform != "linux":
        return False
    program = b"".join(struct.pack("HBBI", *instruction) for instruction in REFUSE_SYN)
    kept = ctypes.create_string_buffer(program)
    reference = struct.pack("HP", len(REFUSE_SYN), ctypes.addressof(kept))
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, reference)
    except OSError as error:  # A sandbox, or an emulated kernel.
        log = logging.getLogger("headgate.service")
        log.warning("new connections cannot be refused before the port is closed: %s", error)
        return False
    return True
