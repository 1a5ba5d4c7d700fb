"""A blocking connection to one server, and a pool of them. No retries: every failure is reported.

Safe under threads, because a connection is used by one caller at a time, and under fork, because a child never
uses its parent's connections.

Also safe under interrupts: a signal handler can raise (Ctrl-C, a time limit) after any step, even during clean-up. So
nothing here is counted up and down. The number of connections in use is the number of live objects, tracked by weak
references: one that an interrupted caller dropped disappears automatically. Locks are only taken by `with`, which has
no gap.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

import hiredis

from ..._fork import reset_after_fork
from .failures import PERMANENT_REFUSALS, NotConnected, NotSent, Refused, Silent, Unanswered
from .names import addresses_of
from .options import shown
from .packing import packed_command

if TYPE_CHECKING:
    import ssl

    from .options import Address, Options
    from .topology import Command

ASKING: Final = packed_command((b"ASKING",))
READ_SIZE = 65_536
PENDING_REPLY_S: Final = 0.1
"""How long an interrupted caller waits for a pending answer."""
LOOK_AGAIN_S: Final = 0.02
"""How long a caller waits at most before it checks for a free connection again."""


class BlockingConnection:
    """A socket and its parser. Created closed; call `open` before use."""

    _socket: socket.socket | None = None
    closed = False

    def __init__(self, address: Address, options: Options, *, sentinel: bool) -> None:
        self._address, self._options, self._sentinel = address, options, sentinel
        self._reader = hiredis.Reader()
        self._news: select.poll | None = None
        self._asked = False

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and not closed on this side."""
        return self._socket is not None and not self.closed

    def open(self, seconds: float) -> None:
        """Connect and authenticate; raises `NotSent` if that fails, `Refused` if it always will."""
        address, options, sentinel = self._address, self._options, self._sentinel
        tls = options.tls_to(sentinel=sentinel)
        try:
            self._socket = _connected(address, tls, seconds)
        except OSError as error:
            self.closed = True
            kind = NotSent if isinstance(error, TimeoutError) else NotConnected
            raise kind(f"cannot connect to {shown(address)}: {error}") from error
        self._news = _poll_of(self._socket)
        if self._news is not None and tls is None:
            # Polling is done here: a socket with a timeout polls twice, and would need a new timeout for every call.
            self._socket.settimeout(0)
        try:
            for command in handshake(options, sentinel=sentinel):
                require_accepted(self.call(command, seconds), address, options)
        except BaseException as error:
            self.close()
            if isinstance(error, Unanswered):
                kind = NotSent if isinstance(error, Silent) else NotConnected
                raise kind(f"cannot connect to {shown(address)}: {error}") from error
            raise

    def is_usable(self) -> bool:
        """Whether the server has neither closed the connection nor sent anything unsolicited."""
        sock = self._socket
        if self._news is None:
            return sock is not None and not select.select([sock], [], [], 0)[0]
        return not self._news.poll(0)

    def has_surplus(self) -> bool:
        """Whether more than the expected reply came: it would be mistaken for the next one."""
        return bool(self._reader.has_data())

    def call(self, command: Command | bytes, seconds: float, *, asking: bool = False) -> Any:
        """Send a command, packed or not, and wait for its reply; an error reply is returned, not raised."""
        payload = command if isinstance(command, bytes) else packed_command(command)
        if asking:
            payload = ASKING + payload
        ends = time.monotonic() + seconds
        try:
            self._asked = True
            self._send(payload, seconds)
            if asking:
                self._read(ends)
            reply = self._read(ends)
            self._asked = False
        except (OSError, hiredis.ProtocolError) as error:
            self.close()
            kind = Silent if isinstance(error, TimeoutError) else Unanswered
            raise kind(str(error) or type(error).__name__) from error
        return reply

    def close(self) -> None:
        """Close the socket."""
        self.closed = True
        if self._socket is not None:
            self._socket.close()

    def abandon(self) -> None:
        """Close it in the middle of a call, but wait for the answer if it comes soon.

        Anything sent on another connection afterwards then arrives after this call: giving a slot back does not
        overtake taking it.
        """
        if self._asked and self.is_open:
            with suppress(OSError, hiredis.ProtocolError):
                self._read(time.monotonic() + PENDING_REPLY_S)
        self.close()

    def _send(self, payload: bytes, seconds: float) -> None:
        sock = self._socket
        assert sock is not None
        if sock.gettimeout() != 0:
            sock.settimeout(seconds)
            sock.sendall(payload)
            return
        try:
            sent = sock.send(payload)
        except BlockingIOError:
            sent = 0
        if sent < len(payload):  # More than the system accepts at once.
            sock.settimeout(seconds)
            sock.sendall(memoryview(payload)[sent:])
            sock.settimeout(0)

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
        sock = self._socket
        assert sock is not None
        if self._news is None or sock.gettimeout() != 0:
            sock.settimeout(seconds)
        elif not self._news.poll(seconds * 1000):
            raise TimeoutError("timed out")
        return sock.recv(READ_SIZE)


class Pool:
    """Connections to many servers, lent to one caller at a time; the most recently used first."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._begin()
        self._closed = False
        reset_after_fork(self)

    def _begin(self) -> None:
        self._idle: dict[tuple[Address, bool], deque[BlockingConnection]] = {}
        self._made: dict[Address, list[ref[BlockingConnection]]] = {}
        """Every connection to a server, in use or not; also dead ones, until the room is needed."""
        self._lock = threading.Lock()
        self._waiting: set[object] = set()
        self._freed: SimpleQueue[None] = SimpleQueue()
        """Wakes one waiting caller. Only a hint: waiting callers also check again by themselves."""
        self.has_started = False
        """Whether a server has answered, or had the time to connect, negotiate TLS and load the scripts."""
        self.discovering = threading.Lock()
        """Held by the thread that runs a discovery; kept here because it must be new after a fork, too."""

    def after_fork(self) -> None:
        """Called in a child process: leave the parent's connections alone, and replace locks that nobody will release.

        Only the child's own descriptors are closed; nothing is sent, so the parent's connections keep working.
        """
        inherited = self._idle
        self._begin()
        for connections in inherited.values():
            for connection in connections:
                connection.close()

    def call(
        self, address: Address, command: Command | bytes, seconds: float, *, asking: bool = False,
        sentinel: bool = False,
    ) -> Any:  # fmt: skip
        """Send a command on a free connection, opening one if there is none."""
        ends = time.monotonic() + seconds
        connection = self._take(address, ends, sentinel=sentinel)
        began = time.monotonic()
        try:
            reply = connection.call(command, max(0.0005, ends - began), asking=asking)
        except Unanswered:
            if time.monotonic() - began >= self._options.deadline / 2:
                self.drop(address)  # It went silent, so the others are suspect, too.
                self.has_started = True
            self._wake()
            raise
        except BaseException:
            connection.abandon()
            self._wake()
            raise
        self._put(address, connection, sentinel=sentinel)
        self.has_started = self.has_started or not sentinel
        return reply

    def drop(self, address: Address) -> None:
        """Close the idle connections to a server."""
        with self._lock:
            dropped = [*self._idle.pop((address, False), ()), *self._idle.pop((address, True), ())]
        for connection in dropped:
            connection.close()

    def close(self) -> None:
        """Close every connection: idle ones now, the others when they are returned."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def _take(self, address: Address, ends: float, *, sentinel: bool) -> BlockingConnection:
        while True:
            with self._lock:
                idle = self._idle.get((address, sentinel))
                connection = idle.pop() if idle else self._new(address, sentinel=sentinel)
            if connection is None:
                self._wait(ends)
            elif not connection.is_open:
                patience = min(self._options.connect_timeout, ends - time.monotonic())
                connection.open(max(0.0005, patience))
                return connection
            elif connection.is_usable():
                return connection
            else:
                connection.close()

    def _new(self, address: Address, *, sentinel: bool) -> BlockingConnection | None:
        """A new connection to a server, not opened yet; `None` if there are too many."""
        most, made = self._options.max_connections, self._made.setdefault(address, [])
        if len(made) >= most:
            made[:] = [one for one in made if (alive := one()) is not None and not alive.closed]
            if len(made) >= most:
                return None
        connection = BlockingConnection(address, self._options, sentinel=sentinel)
        made.append(ref(connection))
        return connection

    def _wait(self, ends: float) -> None:
        """Wait until a connection may be free."""
        left, me = ends - time.monotonic(), object()
        if left <= 0:
            raise NotSent(f"all {self._options.max_connections} connections are busy")
        try:
            self._waiting.add(me)
            with suppress(Empty):
                self._freed.get(timeout=min(left, LOOK_AGAIN_S))
        finally:
            self._waiting.discard(me)

    def _put(self, address: Address, connection: BlockingConnection, *, sentinel: bool) -> None:
        if connection.has_surplus():
            connection.close()
        else:
            with self._lock:
                if self._closed:
                    connection.close()
                else:
                    self._idle.setdefault((address, sentinel), deque()).append(connection)
        self._wake()

    def _wake(self) -> None:
        if self._waiting and self._freed.empty():
            self._freed.put(None)


def require_accepted(reply: object, address: Address, options: Options) -> None:
    """Raise if a server refuses us; its message shows whether that is permanent."""
    if not isinstance(reply, Exception):
        return
    words = str(reply).partition(", with args beginning with")[0]
    outcome = Refused if words.startswith(PERMANENT_REFUSALS) else NotSent
    for secret in (options.password, options.sentinel_password):
        if secret:
            words = words.replace(secret, "***")
    raise outcome(f"{shown(address)} refused the connection: {words}")


def handshake(options: Options, *, sentinel: bool) -> list[Command]:
    """The commands to send first on a new connection."""
    commands: list[Command] = []
    password = options.sentinel_password if sentinel else options.password
    if password or (options.username and not sentinel):
        user = [options.username] if options.username and not sentinel else []
        commands.append((b"AUTH", *user, password))
    if options.db and not sentinel:
        commands.append((b"SELECT", options.db))
    return commands


def _poll_of(plain: socket.socket) -> select.poll | None:
    """A poll object for the socket.

    Without `poll`, `select` is used, which does not support descriptors above 1023.
    """
    if not hasattr(select, "poll"):
        return None
    poll = select.poll()
    poll.register(plain, select.POLLIN)
    return poll


def _connect_to_first(host: str, port: int, seconds: float) -> socket.socket:
    """A connection to the first address of the host that accepts, with one timeout for all."""
    ends = time.monotonic() + seconds
    *others, last = addresses_of(host, seconds)
    for one in others:
        with suppress(OSError):
            return socket.create_connection((one, port), max(0.0005, ends - time.monotonic()))
    return socket.create_connection((last, port), max(0.0005, ends - time.monotonic()))


def _connected(address: Address, tls: ssl.SSLContext | None, seconds: float) -> socket.socket:
    host, port = address
    if port == 0:
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        plain = _connect_to_first(host, port, seconds)
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
