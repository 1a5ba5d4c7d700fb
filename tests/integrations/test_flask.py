"""Limits in Flask: views, blueprints and whole apps, and real workers of gunicorn."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from flask import Blueprint, Flask, request
from flask.views import MethodView

from headgate import Limiter, UsageError
from headgate.integrations.flask import RateLimits
from headgate.testing import ManualClock
from tests.integrations.serving import serving
from tests.servers.fixtures import on_flavours
from tests.servers.process import HOST, free_ports

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers.redis import RedisServer


def ask(app: Flask, *paths: str, method: str = "GET", **headers: str) -> list[Any]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    client = app.test_client()
    where = {"REMOTE_ADDR": "203.0.113.9"}
    return [client.open(path, method=method, headers=sent, environ_base=where) for path in paths]


def statuses(app: Flask, *paths: str, **how: Any) -> list[int]:
    return [response.status_code for response in ask(app, *paths, **how)]


def hello(name: str = "world") -> str:
    return f"hello {name}"


def app_with(limits: RateLimits, rate: str, path: str = "/", **options: Any) -> Flask:
    app = Flask("app")
    limits.init_app(app)
    app.get(path)(limits.limit(rate, **options)(hello))
    return app


def by_user() -> str | None:
    return request.headers.get("X-User")


def by_team() -> str | None:
    return request.headers.get("X-Team")


def test_a_view_is_limited_and_reports_the_remaining_units() -> None:
    clock = ManualClock(1_800_000_000)
    app = app_with(RateLimits(limiter=Limiter(clock=clock)), "2/minute", "/items/<name>")
    first, second, third = ask(app, "/items/1", "/items/2", "/items/3?x=1")
    assert [first.status_code, second.status_code, third.status_code] == [200, 200, 429]
    assert first.headers["RateLimit-Policy"] == '"hello";q=2;w=60'
    assert first.headers["X-RateLimit-Remaining"] == "1"
    assert "Retry-After" not in second.headers
    assert third.content_type == "application/problem+json"
    wait = int(third.headers["Retry-After"])
    assert third.json["detail"] == f"rate limit exceeded; try again in {wait} seconds"
    assert third.json["violated-policies"] == ["hello"]
    assert third.headers.getlist("X-RateLimit-Remaining") == ["0"]
    clock.advance(wait)
    assert statuses(app, "/items/1") == [200]


def test_all_limits_of_a_request_are_charged_or_none() -> None:
    app = Flask("app")
    limits = RateLimits(app, rate="5/minute", limiter=Limiter(clock=ManualClock(1_800_000_000)))
    shop = Blueprint("shop", "shop", url_prefix="/shop")
    limits.limit_blueprint(shop, "3/minute")
    shop.get("/buy")(limits.limit("1/minute")(hello))
    shop.get("/look", endpoint="look")(hello)
    app.register_blueprint(shop)
    (first,) = ask(app, "/shop/buy")
    policies = first.headers["RateLimit-Policy"]
    assert policies == '"default";q=5;w=60, "shop.*";q=3;w=60, "shop.hello";q=1;w=60'
    assert first.headers["X-RateLimit-Limit"] == "1"
    assert statuses(app, *["/shop/buy"] * 9) == [429] * 9
    assert statuses(app, *["/shop/look"] * 3) == [200, 200, 429]  # Denials cost the others nothing.
    assert statuses(app, *["/nowhere"] * 3) == [404, 404, 429]


def test_a_blueprint_keeps_its_limit_when_it_is_registered_by_other_names() -> None:
    limits = RateLimits()
    shop = Blueprint("shop", "shop")
    shop.get("/")(hello)
    limits.limit_blueprint(shop, "2/minute")
    inner = Blueprint("shop", "another")  # The same name within another blueprint, and no limit.
    inner.get("/")(hello)
    outer = Blueprint("outer", "outer")
    outer.register_blueprint(inner, url_prefix="/inner")
    app = Flask("app")
    app.register_blueprint(shop, url_prefix="/v1")
    app.register_blueprint(shop, url_prefix="/v2", name="shop_again")
    app.register_blueprint(outer)
    limits.init_app(app)
    assert statuses(app, "/v2/", "/v1/", "/v2/", "/v1/") == [200, 200, 429, 429]
    assert statuses(app, *["/inner/"] * 3) == [200] * 3


def test_an_endpoint_with_a_dot_needs_no_blueprint() -> None:
    app = Flask("app")
    RateLimits(app, rate="1/minute")
    app.add_url_rule("/", "pages.home", hello)
    assert statuses(app, "/", "/") == [200, 429]


def test_requests_within_a_context_of_the_app_are_counted_each() -> None:
    limits = RateLimits(rate="100/minute")
    app = Flask("app")
    limits.init_app(app)

    class Greeting(MethodView):
        @limits.limit("2/minute")
        def get(self) -> str:
            return hello()

    app.add_url_rule("/", view_func=Greeting.as_view("greeting"))
    with app.app_context():  # Its `g` is that of all requests.
        answers = ask(app, *["/"] * 4)
        elsewhere = ask(app, *["/nowhere"] * 20)
    assert [one.status_code for one in answers] == [200, 200, 429, 429]
    assert len({one.headers["RateLimit-Policy"] for one in elsewhere}) == 1


def test_keys_and_costs_by_functions() -> None:
    limits = RateLimits(key=by_user)
    app = app_with(limits, "4/minute", cost=lambda: int(request.args.get("cost", 1)))
    assert statuses(app, "/?cost=3", "/?cost=2", "/", X_User="a") == [200, 429, 200]
    assert statuses(app, "/?cost=4", "/", X_User="b") == [200, 429]
    assert statuses(app, "/?cost=4", "/") == [200, 429]  # By address.
    (never,) = ask(app, "/?cost=5", X_User="c")
    assert never.status_code == 429
    assert "Retry-After" not in never.headers


def test_two_keys_of_one_view_have_counts_of_their_own() -> None:
    app = Flask("app")
    limits = RateLimits(app)
    view = limits.limit("1/minute", key=by_user)(limits.limit("2/minute", key=by_team)(hello))
    app.get("/")(view)
    assert statuses(app, "/", "/", X_User="7", X_Team="7") == [200, 429]
    assert statuses(app, "/", X_User="8", X_Team="7") == [200]
    assert statuses(app, "/", X_User="9", X_Team="7") == [429]


def test_a_decorator_that_hides_the_limit_does_not_switch_it_off() -> None:
    def careless(view: Callable[..., str]) -> Callable[..., str]:
        def around() -> str:
            return view()

        return around

    app = Flask("app")
    limits = RateLimits(app, rate="9/minute")
    views = Blueprint("views", "views")
    limits.limit_blueprint(views, "2/minute")
    views.get("/", endpoint="hidden")(careless(limits.limit("2/minute")(hello)))
    app.register_blueprint(views)
    first, *_, third = ask(app, "/", "/", "/")
    assert (first.status_code, third.status_code) == (200, 429)
    policies = first.headers["RateLimit-Policy"]
    assert policies == '"default";q=9;w=60, "views.*";q=2;w=60, "views.hidden";q=2;w=60'


def test_a_missing_or_second_init_app_raises() -> None:
    app = Flask("app")
    app.testing = True
    app.get("/")(RateLimits().limit("1/minute")(hello))
    with pytest.raises(UsageError, match="init_app"):
        ask(app, "/")
    told = Flask("told")
    limits = RateLimits(told)
    with pytest.raises(UsageError, match="twice"):
        limits.init_app(told)


def test_the_config_of_an_app_wins() -> None:
    app = Flask("app")
    app.config.update(HEADGATE_RATE="1/minute", HEADGATE_TRUSTED_PROXIES=["203.0.113.0/24"])
    app.config.update(HEADGATE_HEADERS=False)
    RateLimits(rate="9/minute").init_app(app)
    app.get("/")(hello)
    first, second = ask(app, "/", "/", X_Forwarded_For="198.51.100.1")
    assert (first.status_code, second.status_code) == (200, 429)
    assert "RateLimit" not in second.headers
    assert int(second.headers["Retry-After"]) >= 1
    assert statuses(app, "/", X_Forwarded_For="198.51.100.2") == [200]
    wrong = Flask("wrong")
    wrong.config["HEADGATE_RATE"] = "many"
    with pytest.raises(UsageError, match="many"):
        RateLimits(wrong)


def test_an_error_handler_can_answer_in_its_own_words() -> None:
    app = app_with(RateLimits(), "1/minute")
    app.errorhandler(429)(lambda error: (f"slow down: {error.description}", 429))
    _, denied = ask(app, "/", "/")
    assert denied.text.startswith("slow down: rate limit exceeded")
    assert int(denied.headers["Retry-After"]) >= 1


def test_a_store_that_is_away_closes_or_opens() -> None:
    (port,) = free_ports(1)
    url = f"redis://127.0.0.1:{port}"
    (closed,) = ask(app_with(RateLimits(limiter=url), "1/minute"), "/")
    assert (closed.status_code, closed.headers["Retry-After"]) == (503, "1")
    opened = app_with(RateLimits(limiter=url, on_error="open"), "1/minute")
    assert statuses(opened, "/", "/") == [200, 200]


APP = """
import os
from flask import Flask
from headgate.integrations.flask import RateLimits

app = Flask("app")
limits = RateLimits(app, limiter=os.environ["REDIS_URL"])

@app.get("/items/<int:item>")
@limits.limit("20/hour")
def item(item):
    return str(os.getpid())
"""
GUNICORN = (
    "gunicorn",
    "main:app",
    "--bind",
    f"{HOST}:{{port}}",
    "--workers",
    "2",
    "--threads",
    "2",
)


@pytest.mark.slow
@on_flavours("redis_server", "valkey-9")
def test_workers_of_gunicorn_share_one_count(redis_server: RedisServer) -> None:
    """Two workers have to start."""
    with (
        serving(APP, *GUNICORN, environment={"REDIS_URL": redis_server.url}) as app,
        ThreadPoolExecutor(8) as pool,
    ):
        answers = list(pool.map(lambda n: app.get(f"/items/{n}"), range(50)))
    passed = [answer for answer in answers if answer.status_code == 200]
    assert (len(passed), sum(answer.status_code == 429 for answer in answers)) == (20, 30)
    assert sorted(int(one.headers["x-ratelimit-remaining"]) for one in passed) == list(range(20))
