"""One thread that renews every slot a limiter holds, and sleeps if there is none.

Interrupts (Ctrl-C, time limits) can raise in a holder's thread at any time. So both threads access shared state only in
single atomic steps, and take the one lock by `with`: conditions, events and `threading.Thread.start` have internal
locks that an interrupt could leave locked forever. Slots are referenced weakly: if interrupts broke a slot's `with`
block, it is dropped with the object, and expires.
"""

from __future__ import annotations

import threading
import time
from _thread import get_ident, start_new_thread
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING
from weakref import ref

from . import _fork

if TYPE_CHECKING:
    import logging

    from .held import Slot


class Life:
    """One run of the thread."""

    def __init__(self) -> None:
        self.running = threading.Lock()
        """Locked for as long as it runs."""
        self.wake: SimpleQueue[None] = SimpleQueue()


class Renewer:
    """Renews slots until they are removed. The thread starts with the first slot, also after a `stop`."""

    def __init__(self, logger: logging.Logger) -> None:
        self._log = logger
        self._begin()
        _fork.reset_after_fork(self)

    def _begin(self) -> None:
        self._due: dict[ref[Slot], float] = {}
        self._starting = threading.Lock()
        self._life: Life | None = None
        """The run of the current thread; any other one ends."""
        self._runs_in = 0

    def add(self, slot: Slot) -> None:
        """Renew this slot from now on."""
        self._due[ref(slot)] = time.monotonic() + slot.renew_every
        with self._starting:
            life = self._life
            if life is None or not life.running.locked():
                self._life = life = Life()
                start_new_thread(self._run, (life,))
        life.wake.put(None)

    def remove(self, slot: Slot) -> None:
        """Stop renewing this slot."""
        self._due.pop(ref(slot), None)

    def stop(self) -> None:
        """End the thread; slots that are still held expire by themselves."""
        with self._starting:
            life, self._life = self._life, None
            self._due.clear()
        if life is not None:
            life.wake.put(None)
            if get_ident() != self._runs_in:
                with life.running:  # Until it has ended.
                    pass

    def after_fork(self) -> None:
        """Start empty: the thread and the slots belong to the parent."""
        self._begin()

    def _run(self, life: Life) -> None:
        with life.running:
            self._runs_in = get_ident()
            while (slots := self._wait_for_due(life)) is not None:
                for slot in slots:
                    self._renew(slot)

    def _wait_for_due(self, life: Life) -> list[Slot] | None:
        """The slots that are due, or `None` when it is time to stop."""
        while self._life is life:
            now = time.monotonic()
            soonest, slots = None, []
            for one, at in list(self._due.items()):
                slot = one()
                if slot is None:
                    self._due.pop(one, None)
                elif at > now:
                    soonest = at if soonest is None else min(soonest, at)
                elif one in self._due:
                    self._due[one] = now + slot.renew_every
                    slots.append(slot)
            if slots:
                return slots
            slot = None  # Or it would live until the next one is due.
            with suppress(Empty):
                life.wake.get(timeout=None if soonest is None else soonest - now)
        return None

    def _renew(self, slot: Slot) -> None:
        """Renew a slot. A failure is logged, and affects neither this thread nor other slots."""
        try:
            if not slot.renew():
                self.remove(slot)
        except Exception as error:  # noqa: BLE001 - of a store, of a driver, of somebody's logger
            with suppress(Exception):
                slot.not_renewed(error)
