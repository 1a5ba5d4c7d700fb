"""The pages of the service: `/` is the dashboard, `/about` shows what runs, its guarantees, and links.

`/docs` is the API, with forms that send requests. Without the dashboard, `/` is the same as `/about`.

Everything shown is escaped, and nothing is loaded from elsewhere. The content security policy allows no script but our
own, and only on `/docs` and on the dashboard.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from ... import __version__
from ...algorithms import ALGORITHMS
from ..promises import promises
from .api_page import ApiPage, prose
from .dashboard import dashboard_routes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fastapi import FastAPI
    from starlette.requests import Request

    from ..node import Node

POLICY: Final = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
SAFE: Final = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
WITH_SCRIPT: Final = {
    **SAFE,
    "content-security-policy": f"{POLICY}; script-src 'self'; connect-src 'self'",
}
STATIC: Final = Path(__file__).parent / "static"


def page_routes(node: Node, app: FastAPI) -> list[Route]:
    """The pages of a node."""

    async def about(request: Request) -> Response:
        return HTMLResponse(_about(node, str(request.base_url).rstrip("/")), headers=SAFE)

    async def api(_: Request) -> Response:
        page = _page("Headgate: the API", ApiPage(app.openapi()).html())
        return HTMLResponse(page, headers=WITH_SCRIPT)

    front = dashboard_routes() if node.settings.dashboard else [Route("/", about, methods=["GET"])]
    return [
        *front,
        Route("/about", about, methods=["GET"]),
        Route("/docs", api, methods=["GET"]),
        Route("/page.css", _static("page.css", "text/css"), methods=["GET"]),
        Route("/docs.js", _static("docs.js", "text/javascript"), methods=["GET"]),
    ]


def _static(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    text = (STATIC / name).read_text(encoding="utf-8")

    async def send(_: Request) -> Response:
        return Response(text, media_type=media_type, headers={"cache-control": "max-age=3600"})

    return send


def _about(node: Node, base: str) -> str:
    """Public information: no host but the requested one, and no path."""
    settings = node.settings
    store = "answers" if node.store_problem is None else "does not answer; the log says why"
    rate = f"{settings.default_limit} in {settings.default_window:g} s"
    runs = {
        "counts live in": settings.store,
        "the store": store,
        "rules": "the operator's own" if settings.rules else "the starter rules",
        "checks without a limit": f"{rate}, counted by {settings.default_algorithm}",
        "worker processes": settings.workers,
    }
    dashboard = '<a href="/">The dashboard</a> · ' if settings.dashboard else ""
    held = {promise.about: promise.text for promise in promises(settings)}
    return _page(
        "Headgate",
        f"""
<h1>Headgate <small>{escape(__version__)}</small></h1>
<p class="lead">A rate limiter as a service. It {"is ending" if node.draining else "is running"}.</p>
<h2>What runs</h2>
{_list(runs)}
<h2>What it promises</h2>
{_list(held)}
<h2>What each algorithm guarantees</h2>
{_list({name: algorithm.guarantee for name, algorithm in ALGORITHMS.items()})}
<h2>Try it</h2>
<pre>curl -i {escape(base)}/check \\
     -H 'Content-Type: application/json' \\
     -d '{{"key": "user:42", "limit": 5, "window": 60}}'</pre>
<p>Send it six times: the sixth answer says no, and when to come back.</p>
<h2>Where to go</h2>
<p>{dashboard}<a href="/docs">The API</a> · <a href="/openapi.json">OpenAPI</a> · <a href="/health">Health</a>
· <a href="/metrics">Metrics</a></p>
""",
    )


def _list(entries: dict[str, Any]) -> str:
    rows = (
        f"<dt>{escape(str(name))}</dt><dd>{prose(str(value))}</dd>"
        for name, value in entries.items()
    )
    return f"<dl>{''.join(rows)}</dl>"


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="stylesheet" href="/page.css"></head><body><main>{body}</main></body></html>'
    )
