"""A blocking connection to one server, and a pool of them. No retries: what failed is told.

Safe under threads, because a connection is used by one caller at a time, and under fork, because a child never
uses its parent's connections.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import hiredis

from ...fork import remember
from .failures import UNWELCOME, NotSent, Refused, Unanswered
from .options import shown

if TYPE_CHECKING:
    import ssl

    from .options import Address, Options
    from .topology import Command

ASKING: Final = hiredis.pack_command((b"ASKING",))
READ_SIZE = 65_536


class Connection:
    """One socket and the parser of what comes in on it."""

    def __init__(
        self, address: Address, options: Options, *, sentinel: bool, seconds: float
    ) -> None:
        self._reader = hiredis.Reader()
        tls = options.tls_to(sentinel=sentinel)
        try:
            self._socket = _connected(address, tls, seconds)
        except OSError as error:
            raise NotSent(f"cannot connect to {shown(address)}: {error}") from error
        self._news = _poll_of(self._socket)
        if self._news is not None and tls is None:
            # We wait ourselves: a socket that does looks twice, and is told anew with every call for how long.
            self._socket.settimeout(0)
        try:
            for command in handshake(options, sentinel=sentinel):
                reply = self.call(command, seconds)
                require_welcome(reply, address, options)
        except BaseException as error:
            self.close()
            if isinstance(error, Unanswered):
                raise NotSent(str(error)) from error
            raise

    def is_usable(self) -> bool:
        """Whether the server has neither closed the connection nor sent anything unasked."""
        if self._news is None:
            return not select.select([self._socket], [], [], 0)[0]
        return not self._news.poll(0)

    def call(self, command: Command | bytes, seconds: float, *, asking: bool = False) -> Any:
        """Send a command, packed or not, and wait for its reply; an error reply is returned, not raised."""
        payload = command if isinstance(command, bytes) else hiredis.pack_command(command)
        if asking:
            payload = ASKING + payload
        ends = time.monotonic() + seconds
        try:
            self._send(payload, seconds)
            if asking:
                self._read(ends)
            return self._read(ends)
        except (OSError, hiredis.ProtocolError) as error:
            self.close()
            raise Unanswered(str(error) or type(error).__name__) from error

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _send(self, payload: bytes, seconds: float) -> None:
        if self._socket.gettimeout() != 0:
            self._socket.settimeout(seconds)
            self._socket.sendall(payload)
            return
        try:
            sent = self._socket.send(payload)
        except BlockingIOError:
            sent = 0
        if sent < len(payload):  # More than the system takes at once.
            self._socket.settimeout(seconds)
            self._socket.sendall(memoryview(payload)[sent:])
            self._socket.settimeout(0)

    def _read(self, ends: float) -> Any:
        while (reply := self._reader.gets()) is False:
            left = ends - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            data = self._receive(left)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        return reply

    def _receive(self, seconds: float) -> bytes:
        if self._news is None or self._socket.gettimeout() != 0:
            self._socket.settimeout(seconds)
        elif not self._news.poll(seconds * 1000):
            raise TimeoutError("timed out")
        return self._socket.recv(READ_SIZE)


class Pool:
    """Connections to many servers, lent to one caller at a time; the most recently used first."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._idle: dict[tuple[Address, bool], deque[Connection]] = {}
        self._lock = threading.Lock()
        self._room: dict[Address, SimpleQueue[None]] = {}
        """As many tokens as more connections may be in use. A semaphore would do, and cost more than the rest."""
        self._closed = False
        self.discovering = threading.Lock()
        """Held by the one who looks for the servers; here because it must be new after a fork, too."""
        remember(self)

    def after_fork(self) -> None:
        """Called in a child: leave the parent's connections alone, and the locks that nobody will release.

        Only the child's own descriptors are closed; nothing is sent, so the parent goes on with its connections.
        """
        inherited, self._idle, self._room = self._idle, {}, {}
        self._lock, self.discovering = threading.Lock(), threading.Lock()
        for connections in inherited.values():
            for connection in connections:
                connection.close()

    def call(
        self, address: Address, command: Command | bytes, seconds: float, *, asking: bool = False,
        sentinel: bool = False,
    ) -> Any:  # fmt: skip
        """Send a command on a connection of its own, opening one if none is free."""
        ends = time.monotonic() + seconds
        room = self._room.get(address) or self._room_for(address)
        try:
            room.get(timeout=seconds)
        except Empty:
            raise NotSent(f"all {self._options.max_connections} connections are busy") from None
        try:
            connection = self._take(address, ends, sentinel=sentinel)
            reply = connection.call(command, max(0.0005, ends - time.monotonic()), asking=asking)
            self._put(address, connection, sentinel=sentinel)
            return reply
        finally:
            room.put(None)

    def drop(self, address: Address) -> None:
        """Close the idle connections to a server."""
        with self._lock:
            dropped = [*self._idle.pop((address, False), ()), *self._idle.pop((address, True), ())]
        for connection in dropped:
            connection.close()

    def close(self) -> None:
        """Close every connection: the idle ones now, the others when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def _take(self, address: Address, ends: float, *, sentinel: bool) -> Connection:
        while True:
            with self._lock:
                idle = self._idle.get((address, sentinel))
                connection = idle.pop() if idle else None
            if connection is None:
                patience = min(self._options.connect_timeout, ends - time.monotonic())
                return Connection(
                    address, self._options, sentinel=sentinel, seconds=max(0.0005, patience)
                )
            if connection.is_usable():
                return connection
            connection.close()

    def _put(self, address: Address, connection: Connection, *, sentinel: bool) -> None:
        with self._lock:
            if not self._closed:
                self._idle.setdefault((address, sentinel), deque()).append(connection)
                return
        connection.close()

    def _room_for(self, address: Address) -> SimpleQueue[None]:
        with self._lock:
            room = self._room.get(address)
            if room is None:
                room = SimpleQueue()
                for _ in range(self._options.max_connections):
                    room.put(None)
                self._room[address] = room
            return room


def require_welcome(reply: object, address: Address, options: Options) -> None:
    """Refuse a server that refuses us; whether it will always do so is in its words."""
    if not isinstance(reply, Exception):
        return
    words = str(reply).partition(", with args beginning with")[0]
    outcome = Refused if words.startswith(UNWELCOME) else NotSent
    for secret in (options.password, options.sentinel_password):
        if secret:
            words = words.replace(secret, "***")
    raise outcome(f"{shown(address)} refused us: {words}")


def handshake(options: Options, *, sentinel: bool) -> list[Command]:
    """What is said on a new connection, before anything else."""
    commands: list[Command] = []
    password = options.sentinel_password if sentinel else options.password
    if password or (options.username and not sentinel):
        user = [options.username] if options.username and not sentinel else []
        commands.append((b"AUTH", *user, password))
    if options.db and not sentinel:
        commands.append((b"SELECT", options.db))
    return commands


def _poll_of(plain: socket.socket) -> select.poll | None:
    """Says whether there is anything to read. Where there is none we `select`, which knows no descriptors above 1023."""
    if not hasattr(select, "poll"):
        return None
    poll = select.poll()
    poll.register(plain, select.POLLIN)
    return poll


def _connected(address: Address, tls: ssl.SSLContext | None, seconds: float) -> socket.socket:
    host, port = address
    if port == 0:
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        plain = socket.create_connection((host, port), seconds)
    try:
        if port == 0:
            plain.settimeout(seconds)
            plain.connect(host)
            return plain
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return plain
        return tls.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise
