"""Headgate: a rate limiter that gives the same answers in memory and on a shared store.

>>> from headgate import Limiter
>>> limiter = Limiter()
>>> if limiter.hit("user:42", "100/minute"):
...     pass  # go on
"""

from ._spec import Stats
from .aio import AsyncLimiter
from .algorithms import (
    Adaptive,
    Calendar,
    CalendarWindow,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    Limit,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
)
from .charge import Charge
from .clock import Clock, SystemClock
from .decision import Decision
from .engines import _hits
from .engines.base import AsyncEngine, Engine
from .engines.memory import MemoryEngine
from .errors import (
    ConfigError,
    EngineBusy,
    EngineConnectionError,
    EngineError,
    EngineTimeout,
    HeadgateError,
    RateLimitExceeded,
    StateFileError,
    UsageError,
)
from .limiter import Limiter
from .rate import Rate, leased
from .regions.model import Regions
from .rules.format.problems import RulesError
from .rules.live.change_check import ChangeRefused
from .rules.matching.rulebook import Rulebook
from .rules.model import Rule, RuleSet
from .rules.request import Request
from .rules.sources.base import SourceError, VersionConflict

__version__ = "0.1.0"

compiled: bool = not str(_hits.__file__).endswith(".py")
"""Whether this is the compiled build: the same package, with the modules of the hot path in C."""

__all__ = [
    "Adaptive",
    "AsyncEngine",
    "AsyncLimiter",
    "Calendar",
    "CalendarWindow",
    "ChangeRefused",
    "Charge",
    "Clock",
    "Concurrency",
    "ConfigError",
    "Decision",
    "Engine",
    "EngineBusy",
    "EngineConnectionError",
    "EngineError",
    "EngineTimeout",
    "ExponentialBackoff",
    "FixedWindow",
    "HeadgateError",
    "Limit",
    "Limiter",
    "MemoryEngine",
    "Rate",
    "RateLimitExceeded",
    "Regions",
    "Request",
    "Rule",
    "RuleSet",
    "Rulebook",
    "RulesError",
    "SlidingLog",
    "SlidingWindow",
    "SourceError",
    "StateFileError",
    "Stats",
    "SystemClock",
    "TokenBucket",
    "UsageError",
    "VersionConflict",
    "compiled",
    "leased",
]
