"""WSGI middleware: every request is counted before the application sees it.

    app.wsgi_app = WSGIRateLimitMiddleware(app.wsgi_app, rate="100/minute")

It goes around any WSGI application: Flask, Django, Pyramid, or a bare function. Bodies are neither read nor held
back. A rate has one count for each client, over the whole application; a rule has one for its path pattern.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..charge import require_cost
from ..engines.base import Hit
from ..engines.binding import bind_limits
from ..errors import EngineError
from ..headers import headers_by_name
from ..limiter import Limiter
from ..rules.request import Request
from ._middleware import Middleware
from ._shared import (
    PROBLEM_JSON,
    STORE_UNAVAILABLE,
    Clients,
    Refusal,
    encoded,
    key_of,
    log,
    refusal_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..algorithms import Limit
    from ..decision import Decision

Environ: TypeAlias = "dict[str, Any]"
StartResponse: TypeAlias = "Callable[..., Callable[[bytes], object]]"
App: TypeAlias = "Callable[[Environ, StartResponse], Iterable[bytes]]"

REASONS: Final = {400: "Bad Request", 429: "Too Many Requests", 503: "Service Unavailable"}


class WSGIRateLimitMiddleware(Middleware[App, Limiter, Hit, Environ]):
    """Counts by a rate, or by rules.

    `limiter` is a `Limiter` or the URL of an engine; without one, counts are kept in this process. A limiter that has
    rules needs neither `rate` nor `rules`. `key` and `cost` are called with the WSGI environment; where `key` returns
    `None`, the client's address is the key. With rules, `key` is the request's `user_id`. If the store does not answer
    the answer is 503; with `on_error="open"` requests pass uncounted, and with `"fallback"` this process counts by its
    share of the limit. A limiter that is ready does as it was told when it was made.
    """

    _limiter_class = Limiter

    def _bind(self, limits: tuple[Limit, ...], rule: str | None) -> Hit:
        return bind_limits(self._limiter.engine, limits, rule)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Count the request, and hand it on or refuse it."""
        if self._exempt.any and path_of(environ) in self._exempt:
            return self.app(environ, start_response)
        try:
            decision = self._ask(environ)
        except EngineError as error:
            if not self._open:
                log.error(
                    "a request was refused, because its limit could not be checked: %s", error
                )
                return _refuse(start_response, STORE_UNAVAILABLE, headers=True)
            log.warning("a request passed uncounted: %s", error)
            return self.app(environ, start_response)
        if not decision.allowed:
            return _refuse(start_response, refusal_of(decision), headers=self._headers)
        if not self._headers:
            return self.app(environ, start_response)
        ours = list(headers_by_name(decision).items())

        def starting(status: str, theirs: list[tuple[str, str]], *error: Any) -> Any:
            told = [*theirs, *ours]
            if any(name.lower() == "x-ratelimit-limit" for name, _ in theirs):
                told = [*theirs, *(pair for pair in ours if not pair[0].startswith("X-"))]
            return start_response(status, told, *error)

        return self.app(environ, starting)

    def _ask(self, environ: Environ) -> Decision:
        said = None if self._key is None else self._key(environ)
        cost = self._cost
        if self._cost_function is not None:
            cost = require_cost(self._cost_function(environ))
        if self._hit is None:
            return self._limiter.decide_request(self._request(environ, said, cost))
        if said is not None:
            return self._hit(key_of(said, self._prefix), cost)
        return self._hit(self._clients.key(*peer_of(environ)), cost)

    def _request(self, environ: Environ, user_id: object, cost: int) -> Request:
        told = None if self._cost_function is None and cost == 1 else cost
        return request_of(environ, self._clients, user_id, told)


def request_of(
    environ: Environ, clients: Clients, user_id: object = None, cost: int | None = None
) -> Request:
    """What rules see of a request."""
    headers = {
        name[5:].replace("_", "-"): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    return Request(
        environ["REQUEST_METHOD"],
        encoded(path_of(environ)),
        ip=clients.address(*peer_of(environ)),
        user_id=None if user_id is None else str(user_id),
        host=environ.get("HTTP_HOST"),
        headers=headers,
        cost=cost,
    )


def path_of(environ: Environ) -> str:
    """The whole path as text; WSGI hands over its bytes as Latin-1."""
    raw: str = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return raw if raw.isascii() else raw.encode("latin-1").decode(errors="replace")


def peer_of(environ: Environ) -> tuple[str | None, list[str]]:
    """Where the connection comes from, and every `X-Forwarded-For`."""
    forwarded = environ.get("HTTP_X_FORWARDED_FOR")
    return environ.get("REMOTE_ADDR") or None, [forwarded] if forwarded else []


def _refuse(start_response: StartResponse, refusal: Refusal, *, headers: bool) -> list[bytes]:
    body = refusal.body
    told = [(name.decode(), value.decode()) for name, value in refusal.headers]
    lines = [
        ("Content-Type", PROBLEM_JSON),
        ("Content-Length", str(len(body))),
        *(pair for pair in told if headers or pair[0] == "retry-after"),
    ]
    start_response(f"{refusal.status} {REASONS[refusal.status]}", lines)
    return [body]
