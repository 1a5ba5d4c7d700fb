"""The commands that count: redis-cell's `CL.THROTTLE`, and `HG.HIT`, `HG.PEEK` and `HG.RESET` for any rate.

`CL.THROTTLE key max_burst count period [quantity]` is a token bucket of size `max_burst` + 1. Its answer is that of
redis-cell: limited (0 or 1), the size of the bucket, what is left, seconds until a retry passes (-1 if allowed, or if
it never will), seconds until the bucket is full. Seconds are rounded up, except below a millisecond.

Consecutive commands in a pipeline that differ only in their keys are taken in one call.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from ...algorithms import NEVER
from ...charge import ONE, ChargeSet, ReadyCharge, require_cost, require_key, require_steps
from ...charge_kind import ChargeKind
from ...engines.base import Run
from ...errors import UsageError
from ...rate import limits_of
from ..front import SHORT_KEY, Check, CheckRun, Pending
from ..security.audit import AuditedChange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...algorithms import Answer, Limit
    from ...decision import Decision
    from ..front import Front
    from ..node import Node
    from ..security.auth import Caller
    from .node_engine import NodeEngine
    from .reading import Words

Rows: TypeAlias = Any
"""The answers to several commands, or a `Pending` of them: a row of numbers for each, or its error."""
T = TypeVar("T")

MAX_KNOWN: Final = 10_000
MAX_DIGITS: Final = 16
SECOND_US: Final = 1_000_000
ALMOST_US: Final = 999_000
MS_US: Final = 1_000


class Throttle(NamedTuple):
    """The arguments of `CL.THROTTLE`, without the key."""

    limit: int
    window: int
    burst: int
    cost: int

    def check(self, key: str) -> Check:
        """The same as a check."""
        return Check(key, self.limit, self.window, "token_bucket", self.burst, self.cost)


class Hit(NamedTuple):
    """The arguments of `HG.HIT`, without the key."""

    limits: tuple[Limit, ...]
    cost: int


class LimitCommands:
    """Answers these commands for one node."""

    def __init__(self, node: Node, front: Front, engine: NodeEngine) -> None:
        self._node = node
        self._front = front
        self._engine = engine
        self._throttles: dict[tuple[bytes, ...], Throttle] = {}
        self._hits: dict[tuple[bytes, ...], Hit] = {}

    def throttle(self, words: Words) -> Any:
        """`CL.THROTTLE` for one key."""
        began_ns = perf_counter_ns()
        spec = self._throttle(words)
        answer = self._front.check(spec.check(_key(words[1])), began_ns)
        return _rendered(answer, lambda decision: throttled(decision.burst, decision.answer))

    def throttle_run(self, words: Words, keys: list[str]) -> Rows:
        """The same for several keys: the answers in order, or a `Pending` of them."""
        began_ns = perf_counter_ns()
        check = self._throttle(words).check(keys[0])
        results = self._front.check_batch([CheckRun(check, keys)], began_ns)
        return _rendered(results, lambda found: _rows(found, throttled))

    def hit(self, words: Words) -> Any:
        """`HG.HIT key rate [COST n] [ALGORITHM name]`."""
        began_ns = perf_counter_ns()
        key, spec = _key(words[1]), self._hit(words)
        if len(spec.limits) == 1:
            outcome = self._engine.hit(spec.limits[0], key, spec.cost)
        else:
            charge = ReadyCharge(key, spec.limits, spec.cost, ChargeKind.TAKE, None)
            outcome = self._engine.outcome(ChargeSet((charge,)))
        return _rendered(self._front.collect([outcome], began_ns), _single_answer)

    def hit_run(self, words: Words, keys: list[str]) -> Rows:
        """The same for several keys: the answers in order, or a `Pending` of them."""
        began_ns = perf_counter_ns()
        spec = self._hit(words)
        if len(spec.limits) > 1:
            charges = [
                ReadyCharge(key, spec.limits, spec.cost, ChargeKind.TAKE, None) for key in keys
            ]
            outcomes = [self._engine.outcome(ChargeSet((charge,))) for charge in charges]
        else:
            outcomes = self._engine.hits(spec.limits[0], None, keys, spec.cost)
        return _rendered(
            self._front.collect(outcomes, began_ns), lambda found: _rows(found, hit_row)
        )

    def peek(self, words: Words) -> Any:
        """`HG.PEEK key rate [COST n] [ALGORITHM name]`: the answer that `HG.HIT` would get."""
        key, spec = _key(words[1]), self._hit(words)
        charge = ReadyCharge(key, spec.limits, spec.cost, ChargeKind.PEEK, None)
        return self._peeked(ChargeSet((charge,)))

    async def _peeked(self, request: ChargeSet) -> list[int]:
        (decision,) = await self._engine.engine.decide([request])
        return hit_answer(decision)

    async def reset(self, words: Words, caller: Caller) -> str:
        """`HG.RESET key rate [ALGORITHM name]`: forget what the key has used."""
        key, spec = _key(words[1]), self._hit(words)
        if any(word.upper() == b"COST" for word in words[3::2]):
            raise UsageError("a reset takes no COST")
        before = [{"rule": None, "limit": repr(limit)} for limit in spec.limits]
        change = AuditedChange(action="key.reset", target=key, before=before)
        async with self._node.audit.change(caller, change):
            for limit in spec.limits:
                await self._engine.engine.reset(key, limit)
        self._node.recorder.unblock(key)
        return "OK"

    # Parsing, cached

    def _throttle(self, words: Words) -> Throttle:
        arguments = tuple(words[2:])
        known = self._throttles.get(arguments)
        if known is not None:
            return known
        return _keep(self._throttles, arguments, _read_throttle(*arguments))

    def _hit(self, words: Words) -> Hit:
        arguments = tuple(words[2:])
        known = self._hits.get(arguments)
        if known is not None:
            return known
        hit = _read_hit(*arguments)
        # A short text can stand for a hundred limits; `limits_of` caches those by weight.
        return hit if len(hit.limits) > 1 else _keep(self._hits, arguments, hit)


def _keep(known: dict[Any, T], arguments: tuple[bytes, ...], value: T) -> T:
    if len(known) >= MAX_KNOWN:
        known.clear()
    known[arguments] = value
    return value


def _read_throttle(
    max_burst: bytes, count: bytes, period: bytes, quantity: bytes = b"1"
) -> Throttle:
    burst = _whole("max_burst", max_burst) + 1
    spec = Throttle(
        _whole("count", count, 1), _whole("period", period, 1), burst, _whole("quantity", quantity)
    )
    require_cost(spec.cost)
    return spec


def _read_hit(rate: bytes, *options: bytes) -> Hit:
    cost, algorithm = ONE, None
    rest = list(options)
    while rest:
        name = rest.pop(0).upper()
        if not rest or name not in (b"COST", b"ALGORITHM"):
            raise UsageError("after the rate, write COST and a number, or ALGORITHM and a name")
        value = rest.pop(0)
        if name == b"COST":
            cost = require_cost(_whole("cost", value))
        else:
            algorithm = _text("algorithm", value)
    limits = limits_of(_text("rate", rate), algorithm)
    require_steps(len(limits))
    return Hit(limits, cost)


def _whole(name: str, word: bytes, least: int = 0) -> int:
    if not (word.isdigit() and len(word) <= MAX_DIGITS and int(word) >= least):
        shown = word.decode("latin-1")[:40]
        raise UsageError(f"{name} must be a whole number, at least {least}, not {shown!r}")
    return int(word)


def _text(name: str, word: bytes) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise UsageError(f"the {name} is not text in UTF-8") from None


def _key(word: bytes) -> str:
    return require_key(_text("key", word))


def keys_of(commands: Sequence[Words]) -> list[str] | None:
    """The keys of commands; `None` if one of them is invalid."""
    try:
        keys = [words[1].decode() for words in commands]
    except UnicodeDecodeError:
        return None
    lengths = [*map(len, keys)]
    return keys if min(lengths) > 0 and max(lengths) <= SHORT_KEY else None


# Answers


def _rendered(answer: Any, render: Callable[[Any], Any]) -> Any:
    """A rendered answer, now or later."""
    if isinstance(answer, Pending):
        future, result = answer
        return Pending(future, lambda: render(result()))
    return render(answer)


def _single_answer(results: Sequence[Any]) -> list[int]:
    (outcome,) = results
    if isinstance(outcome, Exception):
        raise outcome
    return hit_answer(outcome)


def hit_answer(decision: Decision) -> list[int]:
    """The reply to `HG.HIT`."""
    return [*hit_row(decision.limit, decision.answer)]


def hit_row(limit: int, answer: Answer) -> tuple[int, ...]:
    """Allowed, limit, what is left, milliseconds until a retry passes (-1 for never), and until nothing is used."""
    allowed, remaining, retry_after_us, reset_after_us, _ = answer
    retry = retry_after_us if retry_after_us == NEVER else (retry_after_us + 999) // MS_US
    return allowed, limit, remaining, retry, (reset_after_us + 999) // MS_US


def throttled(burst: int, answer: Answer) -> tuple[int, ...]:
    """An answer in redis-cell's form: seconds are rounded up, except below a millisecond."""
    allowed, remaining, retry_after_us, reset_after_us, _ = answer
    reset = (reset_after_us + ALMOST_US) // SECOND_US
    if allowed or retry_after_us == NEVER:
        return not allowed, burst, remaining, -1, reset
    return 1, burst, remaining, (retry_after_us + ALMOST_US) // SECOND_US, reset


def _rows(results: Sequence[Any], row: Callable[[int, Answer], tuple[int, ...]]) -> list[Any]:
    """The rows of a batch in order, or the error at its position."""
    rows: list[Any] = []
    for result in results:
        if isinstance(result, Run):
            of = _total(result.limit, row)
            rows += [row(of, answer) for answer in result.answers]
        elif isinstance(result, Exception):
            rows.append(result)
        else:
            rows.append(row(_total(result.limited_by, row), result.answer))
    return rows


def _total(limit: Limit, row: object) -> int:
    """What is reported as the limit: for redis-cell, the size of the bucket."""
    total: int = getattr(limit, "burst", limit.limit) if row is throttled else limit.limit
    return total
