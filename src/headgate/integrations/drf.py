"""Throttle classes for Django REST framework that count exactly, on any engine.

    REST_FRAMEWORK = {
        "DEFAULT_THROTTLE_CLASSES": [
            "headgate.integrations.drf.AnonThrottle",
            "headgate.integrations.drf.UserThrottle",
        ],
        "DEFAULT_THROTTLE_RATES": {"anon": "100/day", "user": "1000/day"},
    }

They take the names and settings of the framework's own throttles, and go by `settings.HEADGATE` for the engine and
trusted proxies. All throttles of a view are charged in one step: a request that one of them denies is charged by none,
and two requests at the same moment never share the last unit. With `DjangoRateLimitMiddleware` responses also say what
is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ImproperlyConfigured
from rest_framework.exceptions import APIException
from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle

from ..charge import ReadyCharge
from ..charge_kind import ChargeKind
from ..engines.base import combined
from ..errors import UsageError
from ..rate import limits_of
from ._django_site import site_limits
from ._shared import STORE_UNAVAILABLE, Refusal, key_of, refusal_of
from .wsgi import peer_of

if TYPE_CHECKING:
    from rest_framework.request import Request as RestRequest
    from rest_framework.views import APIView

    from ..algorithms import Limit
    from ..charge import Charge
    from ..decision import Decision

ANSWER: Final = "_headgate_throttled"
"""Where a request keeps the answer to all of its throttles."""


class StoreUnavailable(APIException):
    """The limits of a request are not known, because the store cannot be asked."""

    status_code = STORE_UNAVAILABLE.status
    default_detail = str(STORE_UNAVAILABLE.problem["detail"])
    default_code = "rate_limiter_unavailable"
    wait = 1
    """The framework makes `Retry-After` of it."""


class HeadgateThrottle(BaseThrottle):
    """One limit of a view. Subclasses say whose requests are counted, by `key`."""

    scope: str | None = None
    """The name of the rate in `DEFAULT_THROTTLE_RATES`, and what the count belongs to."""
    rate: str | None = None
    """The rate itself, in the place of one in the settings."""
    algorithm: str | None = None

    def key(self, request: RestRequest, view: APIView) -> str | None:
        """What a request is counted under; `None` if this throttle does not apply to it."""
        raise NotImplementedError

    def allow_request(self, request: RestRequest, view: APIView) -> bool:
        """Charge all throttles of the view, when the first of them is asked."""
        answer = getattr(request, ANSWER, None)
        if answer is None:
            answer = _Charged(request, view)
            setattr(request, ANSWER, answer)
        self._wait = answer.wait
        # The framework asks every throttle in turn: the one that spoke says no.
        return bool(answer.allowed)

    def wait(self) -> float | None:
        """Seconds until a retry can pass; `None` for never."""
        return self._wait

    def charge(self, request: RestRequest, view: APIView) -> Charge | None:
        """What a request is charged by this throttle."""
        limits = self._limits(view)
        key = None if limits is None else self.key(request, view)
        if limits is None or key is None:
            return None
        return ReadyCharge(key, limits, 1, ChargeKind.TAKE, self._scope(view))

    def _scope(self, view: APIView) -> str | None:
        return self.scope

    def _limits(self, view: APIView) -> tuple[Limit, ...] | None:
        rate: Any = self.rate
        scope = self._scope(view)
        if rate is None and scope is not None:
            try:
                rate = api_settings.DEFAULT_THROTTLE_RATES[scope]
            except KeyError:
                raise ImproperlyConfigured(
                    f"no rate for {scope!r} in DEFAULT_THROTTLE_RATES"
                ) from None
        try:
            return None if rate is None else limits_of(rate, self.algorithm)
        except UsageError as error:
            raise ImproperlyConfigured(f"the rate of {scope!r}: {error}") from error


class AnonThrottle(HeadgateThrottle):
    """Counts clients that are not signed in by their address."""

    scope = "anon"

    def key(self, request: RestRequest, view: APIView) -> str | None:
        """The client's address; signed-in users are not counted."""
        if _is_signed_in(request):
            return None
        return site_limits().clients.key(*peer_of(request.META))


class UserThrottle(HeadgateThrottle):
    """Counts signed-in users by their id, and all others by address."""

    scope: str | None = "user"

    def key(self, request: RestRequest, view: APIView) -> str | None:
        """The user, else the client's address."""
        if _is_signed_in(request):
            return key_of(request.user.pk, "user")
        return site_limits().clients.key(*peer_of(request.META))


class ScopedThrottle(UserThrottle):
    """The same for views that name a `throttle_scope`; views with one scope share a count."""

    scope = None

    def _scope(self, view: APIView) -> str | None:
        return getattr(view, "throttle_scope", None)


def _is_signed_in(request: RestRequest) -> bool:
    user: Any = request.user  # `None`, where authentication is switched off.
    return user is not None and user.is_authenticated


class _Charged:
    """What all throttles of a view came to."""

    def __init__(self, request: RestRequest, view: APIView) -> None:
        throttles = [one for one in view.get_throttles() if isinstance(one, HeadgateThrottle)]
        charges = [one.charge(request, view) for one in throttles]
        due = [charge for charge in charges if charge is not None]
        decided: Decision | Refusal | None = site_limits().decide(due) if due else None
        self.allowed = True
        self.wait: float | None = None
        if isinstance(decided, Refusal):
            raise StoreUnavailable
        if decided is not None:
            if not decided.allowed and refusal_of(decided) is STORE_UNAVAILABLE:
                raise StoreUnavailable
            self.allowed = decided.allowed
            self.wait = None if decided.never else decided.retry_after
            _store_decision(request, decided)


def _store_decision(request: RestRequest, decision: Decision) -> None:
    """Leave the decision where the middleware finds it."""
    plain: Any = request._request
    before: Decision | None = getattr(plain, "headgate_decision", None)
    if before is not None and decision.allowed:
        decision = combined([*before.rules, *decision.rules])
    plain.headgate_decision = decision
