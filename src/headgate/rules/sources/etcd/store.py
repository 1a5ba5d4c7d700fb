"""Rules in etcd: one key per rule under a prefix, watched from exactly the revision that was read.

A version is etcd's revision, which every write in the cluster increases. Reads are linearizable and see the whole
prefix at one revision, so no server can lag. A watch starts at the revision after the one that was read, so nothing is
missed. If etcd has compacted that revision meanwhile, the rules are read again, with the same effect.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

from aetcd.rpc import rpc_pb2 as messages

from ..base import SourceError
from ..tree import TreeStore
from ..tree_nodes import ConcurrentChange, State, TreeNode, Write, relevant
from .client import EtcdClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..location import Location

log = logging.getLogger("headgate.rules.etcd")

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
HEARTBEAT: Final = 2.0
SILENCE: Final = 5.0
"""A watch without any answer for this long, heartbeats included, counts as broken."""
EQUAL, LESS = messages.Compare.EQUAL, messages.Compare.LESS
MOD = messages.Compare.MOD


class EtcdStore(TreeStore):
    """The rules under one prefix of an etcd cluster."""

    max_value_bytes: ClassVar = 1_500_000  # A request is limited to 1.5 MiB in total.
    max_transaction_bytes: ClassVar = 1_500_000
    max_transaction_writes: ClassVar = 120  # etcd allows 128 operations.

    def __init__(self, location: Location) -> None:
        self._location = location
        self._prefix = f"{location.path}/".encode()
        self._head_key = f"{location.path}.history".encode()
        self._client = EtcdClient(location)
        self._watcher: _Watcher | None = None

    def __str__(self) -> str:
        return str(self._location)

    @property
    def in_touch(self) -> bool:
        """Whether the watch is open."""
        return self._watcher is not None and self._watcher.open.is_set()

    def watch(self, notify: Callable[[], None]) -> None:
        """Call `notify` whenever something may have changed."""
        ranges = [(self._prefix, _end(self._prefix)), (self._head_key, b"")]
        self._watcher = _Watcher(self._client, ranges, notify)
        self._watcher.start()

    def close(self) -> None:
        """Close the watch and every connection."""
        if self._watcher is not None:
            self._watcher.stop()
        self._client.close()

    def again(self) -> EtcdStore:
        """A fresh store for the same place."""
        return EtcdStore(self._location)

    # Reading

    def _load(self) -> State:
        both = messages.TxnRequest(
            success=[
                _range(self._prefix, _end(self._prefix)),
                _range(self._head_key),
            ]
        )
        answer = self._client.call("transact", both)
        rules, head = (response.response_range.kvs for response in answer.responses)
        found = {
            kv.key[len(self._prefix) :].decode("utf-8", "backslashreplace"): TreeNode(
                kv.value, kv.mod_revision
            )
            for kv in rules
        }
        version = answer.header.revision
        if self._watcher is not None:
            self._watcher.has_read(version)
        return State(
            version,
            {name: found[name] for name in relevant(found)},
            TreeNode(head[0].value, head[0].mod_revision) if head else None,
        )

    # Writing

    def _transact(
        self, writes: Sequence[Write], head: TreeNode | None, new_head: bytes | None
    ) -> int:
        compares = [_unchanged(self._head_key, head)]
        operations = []
        for write in writes:
            key = self._key(write)
            compares.append(_unchanged(key, write.node))
            operations.append(_delete(key) if write.data is None else _put(key, write.data))
        if new_head is not None:
            operations.append(_put(self._head_key, new_head))
        request = messages.TxnRequest(compare=compares, success=operations)
        answer = self._client.call("transact", request, writing=True)
        if not answer.succeeded:
            raise ConcurrentChange
        return int(answer.header.revision)

    def _keep_part(self, name: str, data: bytes) -> None:
        request = messages.PutRequest(key=self._entry_key(name), value=data)
        self._client.call("put", request, writing=True)

    def _entry_names(self) -> list[str]:
        folder = self._entry_key("")
        request = messages.RangeRequest(key=folder, range_end=_end(folder), keys_only=True)
        return [kv.key[len(folder) :].decode() for kv in self._client.call("range", request).kvs]

    def _entries(self, names: Sequence[str]) -> list[bytes]:
        found = []
        for name in names:
            request = messages.RangeRequest(key=self._entry_key(name))
            kvs = self._client.call("range", request).kvs
            if not kvs:
                raise SourceError(f"a part of the history of {self} is missing", transient=False)
            found.append(bytes(kvs[0].value))
        return found

    def _forget(self, names: Sequence[str]) -> None:
        for name in names:
            request = messages.DeleteRangeRequest(key=self._entry_key(name))
            self._client.call("delete", request, writing=True)

    def _key(self, write: Write) -> bytes:
        if write.kind == "entry":
            return self._entry_key(write.name)
        return self._prefix + write.name.encode()

    def _entry_key(self, name: str) -> bytes:
        return self._head_key + b"/" + name.encode()


class _Watcher:
    """A thread that keeps a watch open, on whichever server answers, without a gap.

    It waits until something has been read, because only then is there a revision to watch from. A server that hangs
    looks like an idle one, so it is asked for its progress now and then. (gRPC's keep-alive will not do: etcd
    disconnects clients that use it often enough to be useful.)
    """

    def __init__(
        self, client: EtcdClient, ranges: Sequence[tuple[bytes, bytes]], notify: Callable[[], None]
    ) -> None:
        self.open = threading.Event()
        self._client = client
        self._ranges = ranges
        self._notify = notify
        self._next = 0
        """The first revision that has not been received yet."""
        self._has_read = threading.Event()
        self._stopped = threading.Event()
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._cancel: Callable[[], None] = _no_stream
        self._last_answer = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="headgate-etcd-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._has_read.set()
        self._cancel()
        self._requests.put(None)
        self._thread.join(5.0)

    def has_read(self, revision: int) -> None:
        self._next = max(self._next, revision + 1)
        self._has_read.set()

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._stopped.is_set():
            self._has_read.wait()
            try:
                self._requests = queue.SimpleQueue()
                self._client.watch(self._created(self._requests), self._listen)
            except SourceError as error:
                log.debug("the watch ended: %s", error)
            except Exception:  # A bug here must not end the watch.
                log.exception("the watch of %s failed", self._client)
            if self._stopped.is_set():
                return
            was_open = self.open.is_set()
            self.open.clear()
            pause = FIRST_PAUSE if was_open else min(2 * pause, LONGEST_PAUSE)
            self._notify()
            self._stopped.wait(pause * random.uniform(0.5, 1.0))

    def _created(self, requests: queue.SimpleQueue[Any]) -> Iterator[Any]:
        """The requests of one stream: the watches, then heartbeats until it ends. Runs in a thread of gRPC."""
        for key, end in self._ranges:
            yield messages.WatchRequest(
                create_request=messages.WatchCreateRequest(
                    key=key, range_end=end, start_revision=self._next
                )
            )
        while True:
            try:
                requests.get(timeout=HEARTBEAT)
            except queue.Empty:
                if time.monotonic() - self._last_answer > SILENCE:
                    self._cancel()
                    return
                yield messages.WatchRequest(progress_request=messages.WatchProgressRequest())
            else:
                return

    def _listen(self, stream: Any, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._last_answer = time.monotonic()
        if self._stopped.is_set():
            return
        created = 0
        try:
            for response in stream:
                self._last_answer = time.monotonic()
                if response.canceled:
                    self._forget_compacted(response)
                    return
                created += response.created
                if created == len(self._ranges) and not self.open.is_set():
                    self.open.set()
                    self._notify()
                if response.events:
                    self._next = max(self._next, response.header.revision + 1)
                    self._notify()
        finally:
            self._requests.put(None)  # Ends the thread in which gRPC waits for requests.

    def _forget_compacted(self, response: Any) -> None:
        """After a compaction, continue from now; the reader is notified, and reads everything."""
        if response.compact_revision:
            log.info("etcd has compacted revision %d; reading the rules again", self._next)
            self._next = 0
            self._has_read.clear()


def _range(key: bytes, end: bytes = b"") -> Any:
    return messages.RequestOp(request_range=messages.RangeRequest(key=key, range_end=end))


def _put(key: bytes, value: bytes) -> Any:
    return messages.RequestOp(request_put=messages.PutRequest(key=key, value=value))


def _delete(key: bytes) -> Any:
    return messages.RequestOp(request_delete_range=messages.DeleteRangeRequest(key=key))


def _unchanged(key: bytes, node: TreeNode | None) -> Any:
    revision = 0 if node is None else node.version  # A missing key has revision 0.
    return messages.Compare(result=EQUAL, target=MOD, key=key, mod_revision=revision)


def _end(prefix: bytes) -> bytes:
    """The end of the range of keys that begin with `prefix`, which ends with a slash."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _no_stream() -> None:
    """Placeholder until there is a stream to cancel."""
