"""One thread that renews every slot a limiter holds, and sleeps when there is none."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from . import fork
from .charge import shown
from .errors import HeadgateError

if TYPE_CHECKING:
    import logging

    from .held import Slot


class Renewer:
    """Renews slots until they are removed. The thread starts with the first slot, also after a `stop`."""

    def __init__(self, logger: logging.Logger) -> None:
        self._log = logger
        self._due: dict[Slot, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        """The thread that is to go on; any other one ends."""
        fork.remember(self)

    def add(self, slot: Slot) -> None:
        """Renew this slot from now on."""
        with self._changed:
            self._due[slot] = time.monotonic() + slot.renew_every
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="headgate-renewer", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def remove(self, slot: Slot) -> None:
        """Renew this slot no more."""
        with self._changed:
            self._due.pop(slot, None)

    def stop(self) -> None:
        """End the thread; slots that are still held expire by themselves."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._due.clear()
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def after_fork(self) -> None:
        """Begin anew: the thread is the parent's, and so are the slots."""
        self._changed = threading.Condition()
        self._thread = None
        self._due.clear()

    def _run(self) -> None:
        while (slots := self._wait_for_due()) is not None:
            for slot in slots:
                self._renew(slot)

    def _wait_for_due(self) -> list[Slot] | None:
        """The slots whose time has come, or `None` when it is time to stop."""
        with self._changed:
            while self._thread is threading.current_thread():
                now = time.monotonic()
                due = [slot for slot, at in self._due.items() if at <= now]
                if due:
                    for slot in due:
                        self._due[slot] = now + slot.renew_every
                    return due
                soonest = min(self._due.values(), default=None)
                self._changed.wait(None if soonest is None else soonest - now)
        return None

    def _renew(self, slot: Slot) -> None:
        try:
            if not slot.renew():
                self._log.warning("a slot of %r expired while it was held", shown(slot.key))
                self.remove(slot)
        except HeadgateError as error:  # The next renewal may come in time.
            self._log.warning("a slot of %r could not be renewed: %s", shown(slot.key), error)
