"""Every exception Headgate raises, in one tree, split by who must act.

    HeadgateError
    ├── UsageError (ValueError)   the caller passed something that can never be right
    ├── ConfigError               the operator must change a file, a URL or a setting
    │   ├── RulesError            rules that cannot be used; `problems` has every fault
    │   ├── GuardRefused          rules that change too much at once, and need to be forced
    │   └── StateFileError        a state file is torn, foreign or in use
    ├── SourceError               the place where rules are kept failed; `transient` says if it may pass
    │   └── VersionConflict       somebody else changed the rules first, and nothing was written
    ├── EngineError               the place where state lives failed; `transient` says if it may pass,
    │                             `indefinite` if the request may have been carried out all the same
    └── RateLimitExceeded         not a fault: the answer was no, and the caller asked to be told so

A denial is a value, not an exception: `hit` returns it. `RateLimitExceeded` is raised only by calls
that promise to have the units when they return (`acquire`, `with`, decorators, `slot`).
Messages say what was wrong, show the value, and name the remedy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .decision import Decision


class HeadgateError(Exception):
    """The root of everything Headgate raises."""


class UsageError(HeadgateError, ValueError):
    """An argument that can never be right; nothing was changed.

    `argument` is its name, where the error is about a single one that has one, such as `window`.
    """

    def __init__(self, message: str, argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


class ConfigError(HeadgateError):
    """A file, URL or setting that the operator has to correct."""


class StateFileError(ConfigError):
    """A state file that is torn, foreign, of a newer format, held by another process, or cannot be written."""


class EngineError(HeadgateError):
    """The engine could not answer.

    `transient` is true when the same call may work later. `indefinite` is true when the request may have
    been carried out all the same, because only the answer is missing: trying again may then count twice.
    The driver's own error, if there is one, is the `__cause__`.
    """

    def __init__(self, message: str, *, transient: bool, indefinite: bool = False) -> None:
        super().__init__(message)
        self.transient = transient
        self.indefinite = indefinite

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_engine_error, (str(self), self.transient, self.indefinite)


class RateLimitExceeded(HeadgateError):  # noqa: N818 - the name every limiter's user expects
    """The answer was no. `decision` says why and until when."""

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
    """Whether the call that was ended by this error may have been carried out all the same.

    An interrupt or a cancellation can come at any moment, so only errors that say so are definite.
    """
    if isinstance(error, EngineError):
        return error.indefinite
    return not isinstance(error, HeadgateError)


def _rebuild_engine_error(
    message: str,
    transient: bool,  # noqa: FBT001 - pickle
    indefinite: bool,  # noqa: FBT001
) -> EngineError:
    return EngineError(message, transient=transient, indefinite=indefinite)
