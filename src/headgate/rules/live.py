"""LiveRules: the rules that hold now, kept up to date by a thread.

    read → check → compile → guard → swap

Only the last step can be seen from outside, and it is one assignment: whoever decides requests reads `current`, and
never waits. A set that fails on the way is left out, the one before it stays, and `problem` says why. An older version
than the one in use is never taken, also not after a restart: `lastgood` remembers it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from .. import fork
from ..errors import ConfigError, HeadgateError
from .guard import GuardRefused, difference, documents_of, objections
from .lastgood import Kept, LastGood
from .match import Rulebook
from .pacing import let_go, pacer, uncollected
from .parse import parse_documents
from .sources.base import Snapshot, Source, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .model import RuleSet

log = logging.getLogger("headgate.rules")

RECHECK_SECONDS: Final = 60.0
"""How often the source is read although nothing was heard from it."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0


@dataclass(frozen=True, slots=True)
class Now:
    """Everything about the rules that hold, so that one assignment changes all of it."""

    rulebook: Rulebook
    version: int
    revision: int
    digest: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A set that cannot be used, and why."""

    snapshot: Snapshot
    error: ConfigError


class LiveRules:
    """The rules of a source, followed until `close`.

    Raises what is wrong if there are no rules to begin with: neither good ones in the source, nor a last good copy.
    May be used from any thread, and after a fork: a child follows the source by itself, from when it first asks.
    """

    def __init__(
        self,
        source: Source,
        *,
        last_good: LastGood | None = None,
        recheck_seconds: float = RECHECK_SECONDS,
    ) -> None:
        self._source = source
        self._last_good = last_good
        self._recheck_seconds = recheck_seconds
        self._callbacks: list[Callable[[LiveRules], None]] = []
        self._floor = 0
        self._problem: str | None = None
        self._refused: Refused | None = None
        self._stale_since: float | None = None
        self._closed = False
        self._asleep = False
        self._inherited: list[Source] = []
        self._now: Now | None = None
        self._renew()
        try:
            self._begin()
        except BaseException:
            source.close()
            raise
        fork.remember(self)

    # What others read

    @property
    def current(self) -> Rulebook:
        """The rules that hold now, compiled."""
        if self._asleep:
            self._wake_up()
        now = self._now
        assert now is not None
        return now.rulebook

    @property
    def rules(self) -> RuleSet:
        """The rules that hold now, as they were read."""
        return self.current.rules

    @property
    def version(self) -> int:
        """Where in the source's history they stand; it only grows; `current.version` names the rules themselves."""
        return 0 if self._now is None else self._now.version

    @property
    def revision(self) -> int:
        """The newest change made through Headgate that is in them; 0 if there was none."""
        return 0 if self._now is None else self._now.revision

    @property
    def stale_seconds(self) -> float:
        """For how long they may have been out of date: 0 while the source is heard from and its newest set is in use."""
        since = self._stale_since
        return 0.0 if since is None else max(0.0, time.monotonic() - since)

    @property
    def problem(self) -> str | None:
        """Why the newest rules of the source are not in use; `None` if they are."""
        return self._problem

    @property
    def refused(self) -> bool:
        """Whether the newest set that was read cannot be used; a source that is merely away has told of none."""
        return self._refused is not None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What an operator should know about the source."""
        return self._source.warnings

    def __str__(self) -> str:
        return str(self._source)

    # What others do

    def subscribe(self, callback: Callable[[LiveRules], None]) -> Callable[[], None]:
        """Call `callback(self)` after every swap, from the thread that follows; returns what ends that."""
        self._callbacks.append(callback)

        def end() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return end

    def refresh(self) -> None:
        """Read the source now, in this thread; `problem` says how it went."""
        if self._asleep:
            self._wake_up()
        with self._loading:
            self._load_or_tell()

    def accept(self) -> None:
        """Use the set that the guard has refused, after all."""
        with self._loading:
            if self._refused is not None:
                self._take(self._refused.snapshot, forced=True)

    def close(self) -> None:
        """Stop following. The rules that hold stay."""
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        if not self._asleep:
            self._source.close()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(10.0)

    def after_fork(self) -> None:
        """In a child: the thread and every connection are the parent's."""
        self._renew()
        self._asleep = not self._closed

    # Following

    def _renew(self) -> None:
        self._wake = threading.Event()
        self._loading = threading.Lock()
        self._waking = threading.Lock()
        self._thread: threading.Thread | None = None

    def _begin(self) -> None:
        kept = self._last_good.load() if self._last_good is not None else None
        if kept is not None:
            self._use_kept(kept)
        self._source.watch(self._wake.set)
        try:
            with self._loading:
                self._load()
        except HeadgateError as error:
            if kept is None or self._now is None:
                raise
            self._tell(error)
            self._stale_since = time.monotonic() - max(0.0, time.time() - kept.at)
            self._wake.set()  # To try again soon.
        for warning in self._source.warnings:
            log.warning("%s", warning)
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(
            target=self._follow, args=(self._wake,), name="headgate-rules", daemon=True
        )
        self._thread.start()

    def _wake_up(self) -> None:
        """Follow the source in this process too."""
        with self._waking:
            if not self._asleep:
                return
            self._inherited.append(
                self._source
            )  # Letting go of it could touch the parent's sockets.
            self._source = self._source.again()
            self._source.watch(self._wake.set)
            self._wake.set()
            self._start()
            self._asleep = False

    def _follow(self, wake: threading.Event) -> None:
        pause = FIRST_PAUSE
        patience = self._recheck_seconds
        while True:
            wake.wait(patience)
            if self._closed:
                return
            wake.clear()
            if self._stale_since is None and not self._source.in_touch:
                self._stale_since = time.monotonic()
            with self._loading:
                reachable = self._load_or_tell()
            if reachable:
                pause = FIRST_PAUSE
                patience = self._recheck_seconds
            else:
                patience = pause * random.uniform(0.5, 1.0)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _load_or_tell(self) -> bool:
        """Load, and keep what is wrong for others to see; whether the source could be reached."""
        try:
            self._load()
        except HeadgateError as error:
            if not self._closed:
                self._tell(error)
            return not (isinstance(error, SourceError) and error.transient)
        except Exception as error:  # A bug here must not end the following.
            if self._closed:
                return False
            log.exception("the rules of %s could not be loaded", self._source)
            self._tell(error)
            return False
        return True

    def _load(self) -> None:
        snapshot = self._source.read()
        refused = self._refused
        if refused is not None and _same(refused.snapshot, snapshot):
            raise refused.error.with_traceback(None)  # Nothing about it is new.
        self._refused = None
        try:
            self._take(snapshot)
        except ConfigError as error:
            self._refused = Refused(snapshot, error)
            raise

    def _take(self, snapshot: Snapshot, *, forced: bool = False) -> None:
        """Use this set, or raise what is wrong with it."""
        if self._source.ordered and snapshot.version < self._floor:
            raise SourceError(
                f"{self._source} is at version {snapshot.version}, and version {self._floor} was seen "
                f"before: a server that lags, or one that was put back. In the second case {self._remedy()}"
            )
        now = self._now
        if now is None and not snapshot.documents:
            raise SourceError(
                f"{self._source} has no rules yet; put some there with 'headgate rules push'"
            )
        digest = _digest(snapshot.documents)
        head = snapshot.head
        if now is not None and digest == now.digest:
            revision = now.revision if head is None else head.revision
            self._swap(now.rulebook, snapshot, digest, revision)
            return
        pause = pacer()
        with uncollected():
            parsed = parse_documents(snapshot.documents.items(), pause=pause)
            rulebook = Rulebook(parsed.rules, pause=pause)
        was = now.revision if now is not None else head.revision - 1 if head is not None else 0
        if not forced and (head is None or head.forced <= was):
            # No name for the old rules: they would live until the end of this call, and then go all at once.
            found = objections(
                None if now is None else now.rulebook.rules, parsed.rules, pause=pause
            )
            if found:
                raise GuardRefused(found)
        self._swap(rulebook, snapshot, digest, was if head is None else head.revision)
        self._report(now, parsed.rules)
        if now is not None:
            going = now.rulebook.pieces(pause)
            del now
            let_go(going, pause)

    def _swap(self, rulebook: Rulebook, snapshot: Snapshot, digest: str, revision: int) -> None:
        before = self._now
        is_new = before is None or before.digest != digest
        version = snapshot.version
        if not self._source.ordered:
            version = max(version, self._floor + 1) if is_new else max(version, self._floor)
        now = Now(rulebook, version, revision, digest)
        self._keep(
            now, snapshot
        )  # First, so that nobody who used it starts again with an older one.
        self._floor = version
        self._found_fresh()  # Before the swap: nobody sees new rules with an old problem.
        self._now = now

    def _keep(self, now: Now, snapshot: Snapshot) -> None:
        if self._last_good is None:
            return
        if now == self._now and not self._last_good.failed:
            self._last_good.confirm()
        else:
            self._last_good.save(
                Kept(version=now.version, revision=now.revision, documents=snapshot.documents)
            )

    def _report(self, before: Now | None, rules: RuleSet) -> None:
        if log.isEnabledFor(logging.INFO):
            old = documents_of(None if before is None else before.rulebook.rules)
            changes = difference(old, documents_of(rules), pause=pacer())
            log.info("rules of %s: version %s, %s", self._source, rules.version, changes)
        for callback in list(self._callbacks):
            try:
                callback(self)
            except Exception:
                log.exception("a subscriber of rules failed")

    def _use_kept(self, kept: Kept) -> None:
        """Begin with what was kept; the source comes next."""
        self._floor = kept.version
        try:
            parsed = parse_documents(kept.documents.items(), pause=pacer())
        except HeadgateError as error:
            log.warning("the last good rules cannot be used by this version: %s", error)
            return
        rulebook = Rulebook(parsed.rules, pause=pacer())
        self._now = Now(rulebook, kept.version, kept.revision, _digest(kept.documents))

    def _found_fresh(self) -> None:
        if self._problem is not None:
            log.info("rules of %s: all is well again", self._source)
        self._problem = None
        self._refused = None
        if self._thread is not None and not self._source.in_touch:
            self._stale_since = self._stale_since or time.monotonic()
        else:
            self._stale_since = None

    def _tell(self, error: Exception) -> None:
        problem = str(error)
        if problem != self._problem:
            stays = "" if self._now is None else f", version {self._now.rulebook.version} stays"
            log.warning("the newest rules of %s are not in use%s: %s", self._source, stays, problem)
        self._problem = problem
        if self._stale_since is None:
            self._stale_since = time.monotonic()

    def _remedy(self) -> str:
        if self._last_good is None:
            return "start this process again"
        return f"remove {self._last_good.path} and start this process again"


def _same(one: Snapshot, other: Snapshot) -> bool:
    return (one.documents, one.head) == (other.documents, other.head)


def _digest(documents: Mapping[str, Any]) -> str:
    digest = sha256()
    for name, data in documents.items():
        digest.update(f"{len(name)} {len(data)} {name}".encode("utf-8", "surrogateescape"))
        digest.update(data)
    return digest.hexdigest()
