"""A Django site for tests: settings, views and how to ask them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import django
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import Client, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from tests.integrations import serving

MIDDLEWARE = "headgate.integrations.django.DjangoRateLimitMiddleware"

if not settings.configured:
    settings.configure(
        SECRET_KEY="test",  # noqa: S106
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        INSTALLED_APPS=["headgate.integrations.django.HeadgateConfig", "rest_framework"],
        MIDDLEWARE=[MIDDLEWARE],
        DEBUG_PROPAGATE_EXCEPTIONS=False,
        REST_FRAMEWORK={
            "DEFAULT_AUTHENTICATION_CLASSES": [],
            "UNAUTHENTICATED_USER": None,
            "DEFAULT_THROTTLE_RATES": {
                "anon": "3/minute",
                "user": "5/minute",
                "search": "2/minute",
            },
        },
    )
    django.setup()

from headgate.integrations.django import limit  # noqa: E402 - needs settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def by_user_header(request: HttpRequest) -> str | None:
    return request.headers.get("X-User")


async def by_team_header(request: HttpRequest) -> str | None:
    await asyncio.sleep(0)  # A key may come from a store.
    return request.headers.get("X-Team")


def cost(request: HttpRequest) -> int:
    return int(request.GET.get("cost", 1))


def plain(_: HttpRequest, item: str = "") -> HttpResponse:
    return HttpResponse(f"hello {item}")


async def awaited(_: HttpRequest) -> HttpResponse:
    await asyncio.sleep(0)  # Let others run.
    return HttpResponse("hello")


def failing(_: HttpRequest) -> HttpResponse:
    raise RuntimeError("a view that fails")


def careless(view: Any) -> Any:
    """A decorator that hides what it wraps."""

    def around(request: HttpRequest) -> Any:
        return view(request)

    return around


async def parts() -> AsyncIterator[bytes]:
    for part in (b"one ", b"two"):
        yield part


@limit("2/minute")
async def streaming(_: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(parts())


@method_decorator(limit("2/minute"), name="dispatch")
class Shop(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("shop")

    @method_decorator(limit("1/minute", scope="buying"))
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("bought")


urlpatterns = [
    path("", limit("2/minute")(plain), name="hello"),
    path("items/<item>", limit("2/minute")(plain), name="item"),
    path("awaited", limit("2/minute")(awaited), name="awaited"),
    path("costly", limit("4/minute", key=by_user_header, cost=cost)(plain), name="costly"),
    path("team", limit("1/minute", key=by_team_header)(awaited), name="team"),
    path("two", limit("1/minute")(limit("3/minute", key=by_user_header)(plain)), name="two"),
    path("hidden", careless(limit("2/minute")(plain)), name="hidden"),
    path("failing", limit("2/minute")(failing), name="failing"),
    path("streaming", streaming, name="streaming"),
    path("shop", Shop.as_view(), name="shop"),
    path("free", plain, name="free"),
    path("health", plain, name="health"),
]


def site(headgate: dict[str, Any] | None = None, **others: Any) -> override_settings:
    """Settings of one test; counts begin anew."""
    return override_settings(HEADGATE=headgate or {}, **others)


def ask(
    *paths: str, method: str = "get", address: str = "203.0.113.9", **headers: str
) -> list[Any]:
    """Ask a site through WSGI's handler."""
    client = Client(raise_request_exception=False, REMOTE_ADDR=address)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return [getattr(client, method)(one, headers=sent) for one in paths]


def ask_async(*paths: str, address: str = "203.0.113.9", **headers: str) -> list[Any]:
    """Ask a site through ASGI's handler."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return serving.ask(ASGIHandler(), *paths, client=address, headers=sent)


def statuses(*paths: str, **how: Any) -> list[int]:
    """What they are answered, in short."""
    return [response.status_code for response in ask(*paths, **how)]


def statuses_async(*paths: str, **how: Any) -> list[int]:
    """The same through ASGI."""
    return [response.status_code for response in ask_async(*paths, **how)]
