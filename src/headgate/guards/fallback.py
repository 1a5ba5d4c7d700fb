"""The fallback: the answer when the store is not called, or does not answer.

It follows `on_error`, for the limiter and for each rule:

- `fallback`: this node admits its share of the limit (`local_counts.py`), and the store is charged when it is back;
- `open`: the request passes;
- `closed`: it is denied;
- `raise`: the caller gets the error.

If the rules of one request differ, `raise` wins unless another one denies. Every such answer says in `source` and
`degraded` where it comes from.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from ..charge import Charge, ChargeSet, require_key
from ..charge_kind import ChargeKind
from ..decision import Context, Decision
from ..engines.base import combined
from ..errors import EngineError
from .base import Found, Guard, HitGuard
from .membership import Membership

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..algorithms import Answer, Limit
    from ..engines.base import HookedHit
    from ..rules.model import OnError
    from .breaker import Breaker
    from .local_counts import LocalCounts

CLOSED_RETRY_US: Final = 1_000_000
"""The retry delay of a denial that only means that the engine is unavailable."""
DENIED: Final[Answer] = (False, 0, CLOSED_RETRY_US, 0, 0)
PASSED: Final[Answer] = (True, 0, 0, 0, 0)

WORDS: Final = {
    "fallback": "this node admits its share of each limit",
    "open": "requests pass",
    "closed": "requests are denied",
    "raise": "callers get an error",
}


class FallbackGuard(Guard):
    """Answers when the store does not, according to the `policy` of the rule (or of the limiter, without a rule).

    `in_part` returns whether some servers of the store still answer, see `EngineDescription`.
    """

    def __init__(
        self,
        breaker: Breaker,
        local: LocalCounts,
        policy: Callable[[str | None], OnError],
        *,
        members: Membership | None = None,
        in_part: Callable[[], bool] | None = None,
        on_failure: Callable[[EngineError], None] | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        self.breaker = breaker
        self.local = local
        self.policy = policy
        self._members = Membership() if members is None else members
        self._in_part = in_part
        self._on_failure = on_failure
        self._log = logger or logging.getLogger("headgate")
        self._warned = False
        self._raised = False
        self.wake: Callable[[], None] = _no_shell
        """Starts the recovery if one may be needed; set by the shell."""
        breaker.on_change = self._changed

    def scoped(self, namespace: str) -> FallbackGuard:
        """See `Guard.scoped`. The store and the breaker are shared; the keys are not."""
        return FallbackGuard(
            self.breaker,
            self.local.new_empty(),
            self.policy,
            members=self._members,
            in_part=self._in_part,
            on_failure=self._on_failure,
            logger=self._log,
        )

    @property
    def forgettable(self) -> bool:
        """Whether the store knows everything that was admitted, so that nothing is lost with this guard."""
        return not (self.breaker.is_open or self.local.has_debts or self.local.slots())

    def for_limit(self, limit: Limit, rule: str | None) -> HitGuard:
        """See `Guard.for_limit`."""
        breaker, ticks = self.breaker, self.breaker.ticks
        remembers = self.policy(rule) == "fallback"
        note, members = self.local.known.of(limit, rule).note, self._members

        def before(key: str, cost: int) -> Found:
            if breaker.calm:
                return key, cost, ticks()
            asked_ns = breaker.ask()
            return (key, cost, asked_ns) if asked_ns else instead(key, cost, self.not_asked())

        def after(decision: Decision, ticket: tuple[str, int, int]) -> Decision:
            if not breaker.calm:
                self._note_answered(ticket[2])
            if remembers:
                if members.join is not None:
                    members.join()
                note(ticket[0], decision.answer)
            return decision

        def failed(error: Exception, ticket: tuple[str, int, int]) -> Decision:
            key, cost, asked_ns = ticket
            if not isinstance(error, EngineError):
                raise error
            self.note_failure(asked_ns, error)
            return instead(key, cost, error)

        def instead(key: str, cost: int, error: EngineError) -> Decision:
            return self.answer(ChargeSet((Charge(key, limit, cost, rule=rule),)), error)

        may_skip = None if remembers else self._is_calm
        return HitGuard(before, after, failed, may_skip, quick_hooked_hit=self._quick_hooked_hit)

    def _is_calm(self) -> bool:
        return self.breaker.calm

    def _quick_hooked_hit(self, ask: HookedHit, hit: HookedHit) -> HookedHit:
        """See `HitGuard.quick_hooked_hit`: while all is well, a hit only needs its ticket."""
        breaker, ticks = self.breaker, self.breaker.ticks

        def quick(key: str, cost: int, ticket: Any) -> Any:
            if breaker.calm:
                return ask(key, cost, ((key, cost, ticks()), ticket))
            return hit(key, cost, ticket)

        return quick

    def note_answer(self, asked_ns: int, request: ChargeSet, decision: Decision) -> Decision:
        """Record an answer of the store; a fallback starts from the remaining units it reports."""
        if not self.breaker.calm:
            self._note_answered(asked_ns)
        for one in decision.rules:
            if self.policy(one.rule) == "fallback":
                if self._members.join is not None:
                    self._members.join()
                self.local.known.of(one.limited_by, one.rule).note(one.key, one.answer)
        return decision

    def _note_answered(self, asked_ns: int) -> None:
        self.breaker.answered(asked_ns)
        if self.local in self.breaker.recoveries:
            self.wake()  # Usually running already, but not if its event loop has stopped, or in a forked child.

    def note_failure(self, asked_ns: int, error: EngineError) -> None:
        """Record a failure of the store. While a part of it still answers, the breaker stays closed."""
        if self._in_part is None or not self._in_part():
            self.breaker.failed(asked_ns, error)
        if self._on_failure is not None:
            self._tell(self._on_failure, error)

    def _tell(self, on_failure: Callable[[EngineError], None], error: EngineError) -> None:
        """Call the program's function; an exception in it must not replace the answer."""
        try:
            on_failure(error)
        except Exception as raised:  # noqa: BLE001 - it is the program's own function
            if not self._raised:
                self._raised = True
                self._log.exception("on_failure raised %r; this is logged once", raised)

    def not_asked(self) -> EngineError:
        """The error that explains why the store is not called."""
        why = self.breaker.problem or "an earlier call is late"
        return EngineError(
            f"the store was not called, because it does not answer: {why}", transient=True
        )

    def answer(self, request: ChargeSet, error: EngineError) -> Decision:
        """The answer to a request that failed with `error`; raises it if the policy says so."""
        for charge in request.charges:
            require_key(charge.key)
        if self.breaker.is_open:
            self.wake()
        policies = [self._policy_of(charge) for charge in request.charges]
        if "closed" in policies:
            return self._uncounted(request, policies)
        if "raise" in policies:
            raise error
        if "fallback" not in policies:
            return self._uncounted(request, policies)
        if self._members.join is not None:
            self._members.join()
        if not (self._warned or self.local.fleet.known):
            self._warn_of_unknown_nodes()
        places = [place for place, policy in enumerate(policies) if policy == "fallback"]
        counted_here = tuple(request.charges[place] for place in places)
        decision = self.local.decide(request._replace(charges=counted_here), places)
        if not (self.breaker.is_open or self.local.has_debts):
            self.local.end_outage()  # There is nothing to recover from, so nothing else ends it.
        self.wake()
        if len(counted_here) == len(policies):
            return decision
        return self._with_others(request, policies, decision)

    def _policy_of(self, charge: Charge) -> OnError:
        """The policy of one charge; a shadow never denies, whatever its rule says."""
        return "open" if charge.kind is ChargeKind.SHADOW else self.policy(charge.rule)

    def _uncounted(self, request: ChargeSet, policies: Sequence[OnError]) -> Decision:
        """The answer where nothing needs to be counted. A reservation is granted, with nothing to settle later."""
        decisions = [
            one
            for charge, policy in zip(request.charges, policies, strict=True)
            for one in _without_engine(charge, policy)
        ]
        token = request.token
        if request.reserve_us and "closed" not in policies:
            token = self.local.reserve_nothing(token, request.reserve_us)
        return combined(decisions, token=token) if token else combined(decisions)

    def _with_others(
        self, request: ChargeSet, policies: Sequence[OnError], decision: Decision
    ) -> Decision:
        """Combine the local answer to some charges with the fixed answers to the rest, in the original order."""
        counted = iter(decision.rules)
        decisions = [
            next(counted) if policy == "fallback" else one
            for charge, policy in zip(request.charges, policies, strict=True)
            for one in _without_engine(charge, policy)
        ]
        return combined(decisions, token=decision.token)

    def _changed(self) -> None:
        """Called when the breaker opens or closes: log it, and start the recovery."""
        if not self.breaker.is_open:
            open_s = (self.breaker.ticks() - self.breaker.opened_ns) / 1e9
            words = "the circuit breaker is closed after %.1f s: the store decides again"
            self._log.warning(words, open_s)
            return
        words = WORDS[self.policy(None)]
        fleet = self.local.fleet
        if self.policy(None) == "fallback":
            words = (
                f"{words}, as one of {fleet.nodes}"
                if fleet.known
                else f"{words}, as if it were the only node"
            )
        self._log.error("the circuit breaker is open (%s): %s", self.breaker.problem, words)
        self.wake()

    def _warn_of_unknown_nodes(self) -> None:
        self._warned = True
        self._log.warning(
            "the number of nodes that share the store is unknown, so each of N nodes admits the whole limit; "
            "pass nodes=N"
        )


def _without_engine(charge: Charge, on_error: OnError) -> list[Decision]:
    """The answer to one charge without a count."""
    closed = on_error == "closed"
    source: Any = "shadow" if charge.kind is ChargeKind.SHADOW else on_error
    context = Context(source, degraded=True, rule=charge.rule)
    return [
        Decision(charge.key, limit, DENIED if closed else PASSED, context)
        for limit in charge.limits
    ]


def _no_shell() -> None:
    """Placeholder for `wake` until there is a shell."""
