"""Every exception Headgate raises, in one tree, split by who must act.

    HeadgateError
    ├── UsageError (ValueError)   the caller passed an invalid argument
    ├── ConfigError               the operator must change a file, a URL or a setting
    │   ├── RulesError            rules that cannot be used; `problems` lists every mistake
    │   ├── ChangeRefused         a rule change that is too large, and needs to be forced
    │   └── StateFileError        a state file is damaged, not a state file, or in use
    ├── SourceError               the rules' source failed; `transient` says if a retry may work
    │   └── VersionConflict       another change was made first; nothing was written
    ├── EngineError               the engine failed; `transient` says if a retry may work,
    │   │                         `indefinite` if the request may have been carried out
    │   ├── EngineConnectionError the connection failed or broke
    │   └── EngineTimeout         it did not answer in time
    │       └── EngineBusy        it would not have: too many requests wait for it
    └── RateLimitExceeded         not a failure: the request was denied by a call that raises

A denial is a value, not an exception: `hit` returns it. `RateLimitExceeded` is raised only by calls
that promise to have the units when they return (`acquire`, `with`, decorators, `slot`).
Messages say what was wrong, show the value, and say how to fix it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .decision import Decision


class HeadgateError(Exception):
    """The root of everything Headgate raises."""


class UsageError(HeadgateError, ValueError):
    """An invalid argument; nothing was changed.

    `argument` is its name, such as `window`, if the error is about a single argument.
    """

    def __init__(self, message: str, argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


class ConfigError(HeadgateError):
    """A file, URL or setting that the operator has to correct."""


class StateFileError(ConfigError):
    """A state file that is damaged, not ours, of a newer format, in use by another process, or not writable."""


class EngineError(HeadgateError):
    """The engine could not answer.

    `transient` is true when the same call may work later. `indefinite` is true when the request was sent but no answer
    came: it may have been carried out, and trying again may count twice. `partial` is true when only some keys are
    affected, such as those of a node that hangs. The driver's own error, if there is one, is the `__cause__`.
    """

    def __init__(self, message: str, *, transient: bool, indefinite: bool = False) -> None:
        super().__init__(message)
        self.transient = transient
        self.indefinite = indefinite
        self.partial = False

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_engine_error, (type(self), str(self), self.transient, self.indefinite)


class EngineConnectionError(EngineError):
    """The connection was refused or failed (no such host, TLS), or it broke before the answer came."""


class EngineTimeout(EngineError):  # noqa: N818 - as `TimeoutError` would mislead: it is none of Python's
    """The engine did not answer in time."""


class EngineBusy(EngineTimeout):
    """More requests wait in this process than the engine can answer in time; this one was not sent."""


class RateLimitExceeded(HeadgateError):  # noqa: N818 - the name every limiter's user expects
    """The request was denied. `decision` says why and for how long."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision)
        self.decision = decision

    @property
    def key(self) -> str:
        """The key that was over its limit."""
        return self.decision.key

    @property
    def retry_after(self) -> float:
        """Seconds until a retry can pass; `math.inf` when the cost can never fit."""
        return self.decision.retry_after

    def __str__(self) -> str:
        return f"Rate limit exceeded for key {self.key!r}"


def may_have_happened(error: BaseException) -> bool:
    """Whether the call that ended with this error may have been carried out.

    An interrupt or a cancellation can happen at any time, so only errors that say so are definite.
    """
    if isinstance(error, EngineError):
        return error.indefinite
    return not isinstance(error, HeadgateError)


def _rebuild_engine_error(
    kind: type[EngineError],
    message: str,
    transient: bool,  # noqa: FBT001 - pickle
    indefinite: bool,  # noqa: FBT001
) -> EngineError:
    return kind(message, transient=transient, indefinite=indefinite)
