"""LiveRules: the rules in use, kept up to date by a thread.

    read → check → compile → swap

Only the swap is visible from outside, and it is one assignment: deciding a request reads `current` and never waits. A
node ends up with what its source holds, whatever it missed in between, so that all nodes agree. It does not take
rules that cannot be read (the previous version stays in use, see `independent_documents`), an empty source that had
rules before, or a version older than the one in use, even after a restart (`last_good` remembers it). `problem` then
says why. A change that looks like a mistake is taken, and `alarm` reports it: refusing one is up to whoever pushes
rules (`change_check`).
"""

from __future__ import annotations

import logging
import random
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ... import _fork
from ...errors import ConfigError, HeadgateError
from ..format.independent_documents import IndependentDocuments, parse_separately
from ..format.parse import parse_documents
from ..matching.rulebook import Rulebook
from ..pacing import pacer, release_gradually
from ..sources.base import Snapshot, Source, SourceError, SourceLost
from .change_check import difference, documents_of, objections
from .last_good import LastGood, SavedRules
from .requirement import Requirement, anything
from .state import RejectedUpdate, RulesState, SuspiciousChange, digest_of, same_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from ..model import RuleSet
    from ..sources.base import Head

log = logging.getLogger("headgate.rules")

RECHECK_SECONDS: Final = 60.0
"""How often the source is read although nothing was heard from it."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
ALARM_SECONDS: Final = 3_600.0
"""How long a suspicious change is reported, unless it is confirmed sooner."""


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
        while_reading: Callable[[], AbstractContextManager[None]] = nullcontext,
        require: Requirement = anything,
    ) -> None:
        self._source, self._require = source, require
        self._while_reading = while_reading
        self._last_good = last_good
        self._recheck_seconds = recheck_seconds
        self._callbacks: list[Callable[[LiveRules], None]] = []
        self._lowest_version = 0
        self._problem: str | None = None
        self._is_away = False
        self._suspicion: SuspiciousChange | None = None
        self._refused: RejectedUpdate | None = None
        self._stale_since: float | None = None
        self._closed = False
        self._asleep = False
        self._inherited: list[Source] = []
        self._now: RulesState | None = None
        self._renew()
        try:
            self._begin()
        except BaseException:
            source.close()
            raise
        _fork.reset_after_fork(self)

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
        """How long they may have been out of date: 0 while the source answers and its newest set is in use."""
        since = self._stale_since
        return 0.0 if since is None else max(0.0, time.monotonic() - since)

    @property
    def problem(self) -> str | None:
        """Why the newest rules of the source, or some of them, are not in use; `None` if they are."""
        return self._problem

    @property
    def refused(self) -> bool:
        """Whether something in the source cannot be used; one that is merely away has told of nothing."""
        now = self._now
        return self._refused is not None or (now is not None and now.withheld is not None)

    @property
    def alarm(self) -> str | None:
        """What somebody should look at: a change that is followed and looks like a mistake, or what cannot be used.

        A source that is merely away is no reason. A suspicious change is told for an hour, or until somebody pushes
        rules with `--force`, be they the same.
        """
        told = [None if self._is_away else self._problem]
        suspicion = self._suspicion
        if suspicion is not None and time.monotonic() - suspicion.since < ALARM_SECONDS:
            told.append(suspicion.text)
        return "; ".join(filter(None, told)) or None

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
            self._try_load()

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
        saved = self._last_good.load() if self._last_good is not None else None
        if saved is not None:
            self._use_saved(saved)
        self._source.watch(self._wake.set)
        try:
            with self._loading:
                self._load()
        except HeadgateError as error:
            if saved is None or self._now is None:
                raise
            self._record_error(error)
            self._stale_since = time.monotonic() - max(0.0, time.time() - saved.at)
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
                reachable = self._try_load()
            if reachable:
                pause = FIRST_PAUSE
                patience = self._recheck_seconds
            else:
                patience = pause * random.uniform(0.5, 1.0)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _try_load(self) -> bool:
        """Load, and keep what is wrong for others to see; whether the source could be reached."""
        try:
            self._load()
        except HeadgateError as error:
            if not self._closed:
                self._record_error(error)
            return not (isinstance(error, SourceError) and error.transient)
        except Exception as error:  # A bug here must not end the following.
            if self._closed:
                return False
            log.exception("the rules of %s could not be loaded", self._source)
            self._record_error(error)
            return False
        return True

    def _load(self) -> None:
        snapshot = self._source.read()
        refused = self._refused
        if refused is not None and same_snapshot(refused.snapshot, snapshot):
            raise refused.error.with_traceback(None)  # Nothing about it is new.
        self._refused = None
        try:
            self._take(snapshot)
        except (ConfigError, SourceLost) as error:
            self._refused = RejectedUpdate(snapshot, error)
            raise

    def _take(self, snapshot: Snapshot) -> None:
        """Use this set, or raise what is wrong with it."""
        now, head = self._now, snapshot.head
        if not snapshot.documents:
            self._require_intended(head)
        self._require_newer(snapshot)
        digest = digest_of(snapshot.documents)
        if now is not None and digest == now.digest:
            revision = now.revision if head is None else head.revision
            if head is not None and head.forced > now.revision:
                self._suspicion = None
            self._swap(replace(now, version=snapshot.version, revision=revision))
            return
        pause = pacer()
        with self._while_reading():
            read = self._parsed(snapshot.documents, pause)
            rules = read.parsed.rules
            self._require(rules)
            if not rules.rules:
                self._require_intended(head)
            rulebook = Rulebook(rules, pause=pause)
        was = now.revision if now is not None else head.revision - 1 if head is not None else 0
        suspicion = None
        if head is None or head.forced <= was:
            # No name for the old rules: they would live until the end of this call, and then go all at once.
            suspicion = self._check_change(None if now is None else now.rulebook.rules, rules)
            suspicion = suspicion or self._suspicion
        revision = was if head is None else head.revision
        self._suspicion = suspicion
        self._swap(
            RulesState(rulebook, snapshot.version, revision, digest, read.documents, read.problem())
        )
        self._report(now, rules)
        if now is not None:
            going = now.rulebook.pieces(pause)
            del now
            release_gradually(going, pause)

    def _parsed(
        self, documents: Mapping[str, bytes], pause: Callable[[], None]
    ) -> IndependentDocuments:
        if self._source.separate:
            before = {} if self._now is None else self._now.documents
            return parse_separately(documents, before, pause=pause)
        return IndependentDocuments(parse_documents(documents.items(), pause=pause), documents, {})

    def _require_newer(self, snapshot: Snapshot) -> None:
        if self._source.ordered and snapshot.version < self._lowest_version:
            raise SourceError(
                f"{self._source} is at version {snapshot.version}, but version {self._lowest_version} was seen "
                f"before: the server lags behind, or was restored from a backup. In the second case {self._remedy()}"
            )

    def _require_intended(self, head: Head | None) -> None:
        """Raise `SourceLost` unless an empty rule set was confirmed."""
        if head is not None and head.is_empty:
            return
        if self._now is None:
            raise SourceLost(
                f"{self._source} has no rules yet; push some with 'headgate rules push'",
                transient=False,
            )
        count = len(self._now.rulebook.rules)
        if count:
            raise SourceLost(
                f"{self._source} has lost its rules, and the last {count} stay in use: push them again, or "
                "confirm an empty rule set with 'headgate rules push --allow-empty'",
                transient=False,
            )

    def _check_change(self, old: RuleSet | None, new: RuleSet) -> SuspiciousChange | None:
        """What about a change looks like a mistake, in words."""
        found = objections(old, new, made=True, pause=pacer())
        if not found:
            return None
        said = "; ".join(found)
        log.warning(
            "rules of %s: a change that looks like a mistake was applied, and was not forced: %s",
            self._source,
            said,
        )
        return SuspiciousChange(
            f"a change that looks like a mistake was applied: {said}", time.monotonic()
        )

    def _swap(self, now: RulesState) -> None:
        before = self._now
        if not self._source.ordered:
            is_new = before is None or before.digest != now.digest
            least = self._lowest_version + is_new
            now = replace(now, version=max(now.version, least))
        self._save(now)  # First, so that nobody who used it starts again with an older one.
        self._lowest_version = now.version
        if now.withheld is None:
            self._clear_problem()  # Before the swap: nobody sees new rules with an old problem.
        self._now = now
        if now.withheld is not None:
            self._record_withheld(now.withheld)

    def _save(self, now: RulesState) -> None:
        if self._last_good is None:
            return
        if now == self._now and not self._last_good.failed:
            self._last_good.confirm()
        else:
            self._last_good.save(
                SavedRules(version=now.version, revision=now.revision, documents=now.documents)
            )

    def _report(self, before: RulesState | None, rules: RuleSet) -> None:
        if log.isEnabledFor(logging.INFO):
            old = documents_of(None if before is None else before.rulebook.rules)
            changes = difference(old, documents_of(rules), pause=pacer())
            log.info("rules of %s: version %s, %s", self._source, rules.version, changes)
        for callback in list(self._callbacks):
            try:
                callback(self)
            except Exception:
                log.exception("a subscriber of rules failed")

    def _use_saved(self, saved: SavedRules) -> None:
        """Begin with what was kept; the source comes next."""
        self._lowest_version = saved.version
        try:
            parsed = parse_documents(saved.documents.items(), pause=pacer())
            self._require(parsed.rules)
        except HeadgateError as error:
            log.warning("the last good rules cannot be used here: %s", error)
            return
        rulebook = Rulebook(parsed.rules, pause=pacer())
        digest = digest_of(saved.documents)
        self._now = RulesState(rulebook, saved.version, saved.revision, digest, saved.documents)

    def _clear_problem(self) -> None:
        if self._problem is not None:
            log.info("rules of %s: all is well again", self._source)
        self._problem = None
        self._refused = None
        if self._thread is not None and not self._source.in_touch:
            self._stale_since = self._stale_since or time.monotonic()
        else:
            self._stale_since = None

    def _record_error(self, error: Exception) -> None:
        problem = str(error)
        if problem != self._problem:
            stays = f", version {self._now.rulebook.version} stays" if self._now else ""
            log.warning("the newest rules of %s are not in use%s: %s", self._source, stays, problem)
        lost = isinstance(error, SourceLost)
        self._is_away = isinstance(error, SourceError) and error.transient and not lost
        self._set_problem(problem)

    def _record_withheld(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("some rules of %s are not in use: %s", self._source, problem)
        self._is_away = False
        self._set_problem(problem)

    def _set_problem(self, problem: str) -> None:
        self._problem = problem
        if self._stale_since is None:
            self._stale_since = time.monotonic()

    def _remedy(self) -> str:
        if self._last_good is None:
            return "restart this process"
        return f"remove {self._last_good.path} and restart this process"
