"""Rates for Celery tasks across all workers, by task or by argument.

    app.conf.headgate_engine = "redis://localhost"

    @app.task(base=RateLimitedTask, rate="10/minute", rate_key=lambda user: user)
    def send_mail(user): ...

A worker that takes a task over its rate sends it back, to be tried again when there is room, and goes on with the next
one. That does not count as one of the task's retries. (Celery's own `rate_limit` holds for each worker on its own.)
"""

from __future__ import annotations

import os
import random
from inspect import getattr_static
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from celery import Task
from celery.exceptions import Retry

from ..errors import UsageError
from ..limiter import Limiter
from ..rate import limits_of
from ._shared import key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from ..rate import RateLike

MAX_COUNTDOWN_S: Final = 600.0
"""Longer waits are made of several: brokers deliver a task again that is held back for too long."""
_lock: Final = Lock()


class RateLimitedTask(Task):  # type: ignore[type-arg] # Older releases take no parameters.
    """The base class of tasks with a rate."""

    abstract = True
    rate: RateLike | None = None
    """What all workers together may run."""
    rate_key: Callable[..., Any] | None = None
    """Called with the arguments of the task; what it returns has a rate of its own. Without it, the task has one."""
    rate_algorithm: str | None = None

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Tell what is wrong with a rate when the task is made."""
        super().on_bound(app)
        if cls.rate is None:
            raise UsageError(f"{cls.name} has no rate: pass rate='10/minute' to the decorator")
        limits_of(cls.rate, cls.rate_algorithm)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task if there is room; else send it back. Called directly or eagerly, it waits."""
        limiter, key = limiter_of(self.app), self._key(args, kwargs)
        rate, algorithm = self.rate, self.rate_algorithm
        assert rate is not None
        if self.request.called_directly or self.request.is_eager:
            limiter.limit(key, rate, algorithm=algorithm).acquire()
            return super().__call__(*args, **kwargs)
        decision = limiter.limit(key, rate, algorithm=algorithm).hit()
        if not decision.allowed:
            self._send_back(decision.retry_after)
        return super().__call__(*args, **kwargs)

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        # As it was given, also to a class that the task's own is derived from: it must not be bound to the task.
        function = getattr_static(self, "rate_key")
        if function is None:
            return f"task:{self.name}"
        return key_of(function(*args, **kwargs), f"task:{self.name}")

    def _send_back(self, wait_s: float) -> None:
        """Try again when there is room; a little later for some, so that not all come at once."""
        if wait_s == float("inf"):
            raise UsageError(f"{self.name} can never run: its rate admits nothing")
        countdown = min(wait_s, MAX_COUNTDOWN_S) * random.uniform(1.0, 1.2)
        again = self.signature_from_request(
            self.request, countdown=countdown, retries=self.request.retries
        )
        again.apply_async()
        raise Retry(when=countdown, sig=again)  # type: ignore[arg-type] # Its stub has `numbers.Real`.


def limiter_of(app: Celery) -> Limiter:
    """The limiter of an app: `app.conf.headgate_engine` names its engine, else `HEADGATE_ENGINE` does.

    Each process opens its own, at its first task: connections do not survive a fork.
    """
    with _lock:
        known = app.__dict__.get("_headgate")
        if known is None or known[0] != os.getpid():
            engine = app.conf.get("headgate_engine") or os.environ.get("HEADGATE_ENGINE")
            if engine is None:
                raise UsageError(
                    "no engine: set app.conf.headgate_engine, such as 'redis://localhost'"
                )
            opened = engine if isinstance(engine, Limiter) else Limiter(engine)
            known = app.__dict__["_headgate"] = (os.getpid(), opened)
        limiter: Limiter = known[1]
        return limiter
