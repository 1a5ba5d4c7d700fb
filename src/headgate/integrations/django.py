"""Limits for Django: middleware, a decorator for views, and system checks.

    INSTALLED_APPS = [..., "headgate.integrations.django.HeadgateConfig"]
    MIDDLEWARE = [..., "headgate.integrations.django.DjangoRateLimitMiddleware"]
    HEADGATE = {"RATE": "1000/hour", "ENGINE": "redis://localhost"}

    @limit("10/minute")
    def hello(request): ...

The middleware charges the site's rate and the limits of the view in one step, just before the view is called: a request
that one of them denies is charged by none. Rules (`HEADGATE["RULES"]`, in the place of a rate) are decided earlier,
before any other middleware further in. Without the middleware, the decorator counts by itself. Both work in sync and
async projects. A count belongs to the client and the view, never to a concrete URL.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.http import HttpResponse

from ..engines.base import combined
from ..errors import HeadgateError
from ._django_checks import find_mistakes
from ._django_site import RequestLimit, SiteLimits, by_user, site_limits
from ._shared import PROBLEM_JSON, Refusal, refusal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django.http import HttpRequest, HttpResponseBase

    from ..charge import Charge
    from ..decision import Decision
    from ..rate import RateLike
    from ._django_site import CostFunction, KeyFunction

__all__ = ["DjangoRateLimitMiddleware", "HeadgateConfig", "by_user", "limit"]

View = TypeVar("View", bound="Callable[..., Any]")

MARK: Final = "_headgate_limits"
"""Where a view keeps its limits."""


def limit(
    rate: RateLike,
    *,
    key: KeyFunction | None = None,
    cost: int | CostFunction = 1,
    scope: str | None = None,
    algorithm: str | None = None,
) -> Callable[[View], View]:
    """A decorator for a view, sync or async; for a class, `method_decorator(limit("5/minute"), name="dispatch")`.

    `key` and `cost` are called with the request; where `key` returns `None`, the client's address is the key. Views
    whose limits have one `scope` share a count.
    """
    one = RequestLimit(rate, key, cost, scope, algorithm)

    def decorate(view: View) -> View:
        name = f"{view.__module__}.{view.__qualname__}" if hasattr(view, "__qualname__") else None

        def due(request: HttpRequest) -> list[tuple[RequestLimit, str]]:
            """This limit, unless the middleware has charged it."""
            counted = any(one is before for before in _counted(request))
            return [] if counted else [(one, _view_name(request) or name or "view")]

        if iscoroutinefunction(view):

            @wraps(view)
            async def limited(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
                refused = await _charge_async(request, due(request))
                return _with_headers(request, refused or await view(request, *args, **kwargs))
        else:

            @wraps(view)
            def limited(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
                refused = _charge(request, due(request))
                return _with_headers(request, refused or view(request, *args, **kwargs))

        setattr(limited, MARK, (one, *getattr(view, MARK, ())))
        return limited  # type: ignore[return-value]

    return decorate


class DjangoRateLimitMiddleware:
    """Counts every request by `HEADGATE["RATE"]` and by the limits of its view, and adds the headers."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._async = iscoroutinefunction(get_response)
        self.process_view: Callable[..., Any] = self._before_view
        if self._async:
            markcoroutinefunction(self)
            self.process_view = self._before_view_async

    def __call__(self, request: HttpRequest) -> Any:
        """Hand on the request; one that reached no view, such as a 404, is counted as well."""
        if self._async:
            return self._call_async(request)
        if self._follows_rules(request):
            refused = _refused(request, site_limits().decide_by_rules(request))
            if refused is not None:
                return _with_headers(request, refused)
        response = self.get_response(request)
        refused = _charge(request, self._due_without_view(request))
        return _with_headers(request, refused or response)

    async def _call_async(self, request: HttpRequest) -> HttpResponseBase:
        if self._follows_rules(request):
            refused = _refused(request, await site_limits().decide_by_rules_async(request))
            if refused is not None:
                return _with_headers(request, refused)
        response = await self.get_response(request)
        refused = await _charge_async(request, self._due_without_view(request))
        return _with_headers(request, refused or response)

    def _follows_rules(self, request: HttpRequest) -> bool:
        site = site_limits()
        return site.by_rules and request.path not in site.exempt

    def _before_view(self, request: HttpRequest, view: Any, *_: Any) -> HttpResponse | None:
        return _charge(request, self._due(request, view))

    async def _before_view_async(
        self, request: HttpRequest, view: Any, *_: Any
    ) -> HttpResponse | None:
        return await _charge_async(request, self._due(request, view))

    def _due(self, request: HttpRequest, view: Any) -> list[tuple[RequestLimit, str]]:
        site, marked = site_limits(), getattr(view, MARK, ())
        request._headgate_seen = True  # type: ignore[attr-defined]
        for_all = () if request.path in site.exempt else site.all
        name = _view_name(request) or "view"
        return [*((one, "default") for one in for_all), *((one, name) for one in marked)]

    def _due_without_view(self, request: HttpRequest) -> list[tuple[RequestLimit, str]]:
        if getattr(request, "_headgate_seen", False):
            return []
        return self._due(request, None)


class HeadgateConfig(AppConfig):
    """The app that brings the system checks; it has no models."""

    name = __name__
    label = "headgate"
    verbose_name = "Headgate"

    def ready(self) -> None:
        """Have `manage.py check` look at the settings."""
        checks.register(check_settings)


def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """What is wrong, or looks wrong, with the settings."""
    try:
        SiteLimits(getattr(settings, "HEADGATE", {}))
    except (HeadgateError, ImportError) as error:
        return [checks.Error(f"settings.HEADGATE: {error}", id="headgate.E001")]
    return find_mistakes(settings, f"{__name__}.{DjangoRateLimitMiddleware.__name__}")


def _counted(request: HttpRequest) -> list[RequestLimit]:
    counted: list[RequestLimit] = request.__dict__.setdefault("_headgate_counted", [])
    return counted


def _view_name(request: HttpRequest) -> str | None:
    match = request.resolver_match
    return None if match is None else match.view_name or match.route


def _charge(request: HttpRequest, due: Sequence[tuple[RequestLimit, str]]) -> HttpResponse | None:
    """Take what is due; return a response if the request is refused."""
    if not due:
        return None
    site = site_limits()
    charges = [one.charge(request, scope, site) for one, scope in due]
    _counted(request).extend(one for one, _ in due)
    return _refused(request, site.decide(_with_own_names(charges)))


async def _charge_async(
    request: HttpRequest, due: Sequence[tuple[RequestLimit, str]]
) -> HttpResponse | None:
    if not due:
        return None
    site = site_limits()
    charges = [await one.charge_async(request, scope, site) for one, scope in due]
    _counted(request).extend(one for one, _ in due)
    return _refused(request, await site.decide_async(_with_own_names(charges)))


def _with_own_names(charges: list[Charge]) -> list[Charge]:
    """Give limits of one scope a count each, also where two functions return the same key."""
    for number, charge in enumerate(charges):
        same = sum(before.rule == charge.rule for before in charges[:number])
        if same:
            charge.rule = f"{charge.rule}#{same + 1}"
    return charges


def _refused(request: HttpRequest, answer: Decision | Refusal | None) -> HttpResponse | None:
    if answer is None:
        return None
    if isinstance(answer, Refusal):
        return _response(answer)
    before: Decision | None = getattr(request, "headgate_decision", None)
    if before is not None and answer.allowed:
        answer = combined([*before.rules, *answer.rules])
    request.headgate_decision = answer  # type: ignore[attr-defined]
    return None if answer.allowed else _response(refusal_of(answer))


def _response(refusal: Refusal) -> HttpResponse:
    response = HttpResponse(refusal.body, status=refusal.status, content_type=PROBLEM_JSON)
    for name, value in refusal.headers:
        if name == b"retry-after":
            response["Retry-After"] = value.decode()
    return response


def _with_headers(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    """The response, with headers that say what is left."""
    decision: Decision | None = getattr(request, "headgate_decision", None)
    if decision is not None and site_limits().headers:
        for name, value in decision.headers().items():
            response[name] = value
    return response
