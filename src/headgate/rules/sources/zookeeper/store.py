"""Rules in ZooKeeper: one znode per rule, all of them watched.

A version is a zxid, the number of a transaction: the highest of the last one that created or deleted a rule (`pzxid` of
the folder) and the last one that changed any (`mzxid`). Every change increases it, with any tool. A server may lag
behind the others, so `sync` comes before every read.

ZooKeeper can read only one znode at a time. So a read counts as one moment only if neither the head nor the folder has
changed between its beginning and its end. Znodes are cached between reads while their watch is silent. kazoo delivers
events and answers in different threads; the fence ensures that every event that came before an answer is processed
before the answer is used, so nothing is cached for too long.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
)
from kazoo.protocol.states import Callback, KazooState
from kazoo.security import ANYONE_ID_UNSAFE, Permissions

from ..base import Snapshot, SourceError
from ..tree import TreeStore
from ..tree_nodes import ConcurrentChange, State, TreeNode, UnknownOutcome, Write, relevant
from .client import make_acl, make_client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..location import Location

TIMEOUT_SECONDS: Final = 5.0
READS_AT_ONCE: Final = 500
TRIES: Final = 50
"""How often a read is restarted because the rules changed meanwhile."""


class ZooKeeperStore(TreeStore):
    """The rules under one path of a ZooKeeper ensemble."""

    max_value_bytes: ClassVar = 1_000_000  # A request is limited to 1,048,575 bytes in total.
    max_transaction_bytes: ClassVar = 1_000_000
    max_transaction_writes: ClassVar = 20_000

    def __init__(self, location: Location) -> None:
        self._location = location
        self._path = location.path
        self._head_path = f"{location.path}.history"
        self._timeout = location.options.get("timeout", TIMEOUT_SECONDS)
        self._acl = make_acl(location)
        self._notify: Callable[[], None] = _no_watcher
        self._reading = threading.Lock()
        self._kept: dict[str, _CachedNode] = {}
        self._checked = False
        self._closed = False
        self._seen = threading.Event()
        self._connected = threading.Event()
        self._client = make_client(location)
        self._client.add_listener(self._state_changed)
        self._client.start_async()

    def __str__(self) -> str:
        return str(self._location)

    @property
    def in_touch(self) -> bool:
        """Whether there is a session and a connection."""
        return self._connected.is_set()

    def watch(self, notify: Callable[[], None]) -> None:
        """Call `notify` whenever something may have changed."""
        self._notify = notify

    def close(self) -> None:
        """End the session; pending calls fail at once."""
        self._notify = _no_watcher
        self._closed = True
        self._client.remove_listener(self._state_changed)
        self._connected.set()
        self._seen.set()
        self._client.stop()
        self._client.close()

    def again(self) -> ZooKeeperStore:
        """A fresh store for the same place."""
        return ZooKeeperStore(self._location)

    def read_for_edit(self) -> Snapshot:
        """Like `read`, after creating the folder and the head, and finishing incomplete changes."""
        self._require_connection()
        for path in (self._path, self._head_path):
            self._ask(self._client.ensure_path_async(path, acl=self._acl), writing=True)
        return super().read_for_edit()

    # Reading

    def _load(self) -> State:
        self._require_connection()
        with self._reading:
            for _ in range(TRIES):
                state = self._load_once()
                if state is not None:
                    return state
        raise SourceError(f"{self} changes faster than it can be read")

    def _load_once(self) -> State | None:
        """Read everything; `None` if it was not consistent."""
        client = self._client
        self._ask(client.sync_async(self._path))
        head = self._get_watched(self._head_path)
        folder = self._children_watched()
        if folder is None:
            return State(self._version_without_folder(head), {}, _node(head))
        names, stat = folder
        self._check_access()
        self._fence()
        found = self._fetch(relevant(names))
        if found is None:
            return None
        head_now = self._ask(client.exists_async(self._head_path))
        folder_now = self._ask(client.exists_async(self._path))
        if _mzxid(head_now) != _mzxid(head and head[1]) or folder_now is None:
            return None
        if folder_now.pzxid != stat.pzxid:
            return None
        version = max(
            stat.pzxid, _mzxid(head_now), *(kept.stat.mzxid for kept in found.values()), 0
        )
        rules = {name: TreeNode(kept.data, kept.stat.version) for name, kept in found.items()}
        return State(version, rules, _node(head))

    def _fetch(self, names: Sequence[str]) -> dict[str, _CachedNode] | None:
        """Every rule, from the cache and from the server; `None` if one has disappeared meanwhile."""
        cached = {name: self._kept.get(name) for name in names}
        found = {name: kept for name, kept in cached.items() if kept is not None}
        for some in _portions([name for name in names if name not in found]):
            try:
                found |= self._fetch_some(some)
            except NoNodeError:
                return None
        for name in self._kept.keys() - set(names):
            self._kept.pop(name, None)
        return {name: found[name] for name in names}

    def _fetch_some(self, names: Sequence[str]) -> dict[str, _CachedNode]:
        """Rules from the server. They are in the cache before they are read, for their watches may fire at once."""
        asked: dict[str, _CachedNode] = {}
        answers = []
        for name in names:
            asked[name] = kept = self._kept[name] = _CachedNode()
            watch = partial(self._drop_cached, name, kept)
            answers.append(self._client.get_async(self._rule(name), watch=watch))
        try:
            for kept, answer in zip(asked.values(), answers, strict=True):
                kept.data, kept.stat = self._ask(answer)
        except BaseException:
            for name, kept in asked.items():
                self._drop_cached(name, kept)  # Nobody may find one that was not read.
            raise
        return asked

    def _drop_cached(self, name: str, kept: _CachedNode, _event: object = None) -> None:
        """Drop this from the cache: its watch has fired, or it was never read."""
        if self._kept.get(name) is kept:
            self._kept.pop(name, None)
        if _event is not None:
            self._notify()

    def _fence(self) -> None:
        """Wait until every event received so far is processed."""
        self._seen = seen = threading.Event()
        self._client.handler.dispatch_callback(Callback("fence", seen.set, ()))
        if self._closed or not seen.wait(self._timeout) or self._closed:
            raise SourceError(f"{self} does not answer")

    def _get_watched(self, path: str) -> tuple[bytes, Any] | None:
        try:
            data, stat = self._ask(self._client.get_async(path, watch=self._changed))
        except NoNodeError:
            if self._ask(self._client.exists_async(path, watch=self._changed)) is None:
                return None
            return self._get_watched(path)
        return data, stat

    def _children_watched(self) -> tuple[list[str], Any] | None:
        try:
            names, stat = self._ask(
                self._client.get_children_async(self._path, watch=self._changed, include_data=True)
            )
        except NoNodeError:
            if self._ask(self._client.exists_async(self._path, watch=self._changed)) is None:
                return None
            return self._children_watched()
        return names, stat

    def _version_without_folder(self, head: tuple[bytes, Any] | None) -> int:
        parent = self._path.rpartition("/")[0] or "/"
        stat = self._ask(self._client.exists_async(parent))
        return max(_mzxid(head and head[1]), 0 if stat is None else stat.pzxid)

    def _check_access(self) -> None:
        """Check once whether anyone may write here."""
        if self._checked:
            return
        self._checked = True
        try:
            acls, _ = self._ask(self._client.get_acls_async(self._path))
        except (SourceError, NoNodeError):
            return  # The ACL cannot be read: nothing to warn about.
        writing = Permissions.ALL & ~Permissions.READ
        if any(acl.id == ANYONE_ID_UNSAFE and acl.perms & writing for acl in acls):
            warning = (
                f"anyone who can reach {self} may change its rules; set a user and a password, "
                "as in zookeeper://user:password@host"
            )
            self.warnings = (warning,)

    # Writing

    def _transact(
        self, writes: Sequence[Write], head: TreeNode | None, new_head: bytes | None
    ) -> int:
        self._require_connection()
        step = self._client.transaction()
        if head is None and new_head is not None:  # The parent of the entry.
            step.create(self._head_path, new_head, acl=self._acl)
        for write in writes:
            path = (
                self._rule(write.name)
                if write.kind == "rule"
                else f"{self._head_path}/{write.name}"
            )
            if write.data is None:
                assert write.node is not None
                step.delete(path, write.node.version)
            elif write.node is None:
                step.create(path, write.data, acl=self._acl)
            else:
                step.set_data(path, write.data, write.node.version)
        if head is not None:
            if new_head is None:
                step.check(self._head_path, head.version)
            else:
                step.set_data(self._head_path, new_head, head.version)
        results = self._ask(step.commit_async(), writing=True)
        self._require_done(results)
        stat = results[-1] if head is not None and new_head is not None else None
        if stat is None:
            stat = self._ask(self._client.exists_async(self._head_path))
        return _mzxid(stat)

    def _require_done(self, results: Sequence[object]) -> None:
        for result in results:
            if isinstance(result, RolledBackError) or not isinstance(result, Exception):
                continue
            if isinstance(result, BadVersionError | NoNodeError | NodeExistsError):
                raise ConcurrentChange
            raise self._explained(result)

    def _keep_part(self, name: str, data: bytes) -> None:
        self._require_connection()
        made = self._client.create_async(f"{self._head_path}/{name}", data, acl=self._acl)
        with contextlib.suppress(NodeExistsError):  # By an earlier attempt, whose answer was lost.
            self._ask(made, writing=True)

    def _entry_names(self) -> list[str]:
        self._require_connection()
        try:
            return list(self._ask(self._client.get_children_async(self._head_path)))
        except NoNodeError:
            return []

    def _entries(self, names: Sequence[str]) -> list[bytes]:
        self._require_connection()
        asked = [self._client.get_async(f"{self._head_path}/{name}") for name in names]
        try:
            return [self._ask(answer)[0] for answer in asked]
        except NoNodeError:
            raise SourceError(
                f"a part of the history of {self} is missing", transient=False
            ) from None

    def _forget(self, names: Sequence[str]) -> None:
        asked = [self._client.delete_async(f"{self._head_path}/{name}") for name in names]
        for answer in asked:
            with contextlib.suppress(NoNodeError):  # Another editor has cleaned up too.
                self._ask(answer)

    # The connection

    def _rule(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
        self._notify()

    def _changed(self, _event: object) -> None:
        self._notify()

    def _require_connection(self) -> None:
        if not self._connected.wait(self._timeout) or self._closed:
            raise SourceError(f"{self} cannot be reached")

    def _ask(self, answer: Any, *, writing: bool = False) -> Any:
        """Wait for an answer; errors about a znode are raised unchanged, all others as `SourceError`."""
        try:
            return answer.get(timeout=self._timeout)
        except (NoNodeError, NodeExistsError, BadVersionError):
            raise
        except (NoAuthError, AuthFailedError, NotEmptyError) as error:
            raise self._explained(error) from None
        except (KazooException, self._client.handler.timeout_exception) as error:
            kind = UnknownOutcome if writing else SourceError
            raise kind(f"{self} does not answer: {type(error).__name__}") from error

    def _explained(self, error: Exception) -> SourceError:
        if isinstance(error, NoAuthError | AuthFailedError):
            who = self._location.username or "a client without a name"
            return SourceError(
                f"{self} does not let {who} do this; check the user, the password and the ACL of "
                f"{self._path}",
                transient=False,
            )
        if isinstance(error, NotEmptyError):
            return SourceError(
                f"a rule of {self} has znodes below it, which Headgate did not create; remove them",
                transient=False,
            )
        return SourceError(f"{self} refused: {type(error).__name__} {error}", transient=False)


class _CachedNode:
    """A cached znode, valid while its watch is silent."""

    __slots__ = ("data", "stat")

    data: bytes
    stat: Any


def _portions(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(names), READS_AT_ONCE):
        yield names[at : at + READS_AT_ONCE]


def _mzxid(stat: Any) -> int:
    return 0 if stat is None else int(stat.mzxid)


def _node(found: tuple[bytes, Any] | None) -> TreeNode | None:
    return None if found is None else TreeNode(found[0], found[1].version)


def _no_watcher() -> None:
    """Placeholder until somebody watches."""
