"""The pages that need no script: what runs, what it promises and where to go; and the API as a page.

Everything that is shown is escaped, nothing is loaded from elsewhere, and the content security policy allows no script at all.
"""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from .. import __version__
from .promises import promises

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

    from .desk import Desk
    from .node import Node

SAFE: Final = {
    "content-security-policy": "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
STYLE: Final = """\
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --line: #dfe4ea; --paper: #fbfcfd; --accent: #0b6e6e; --code: #eef3f5 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaef; --soft: #9aa6b4; --line: #2c3642; --paper: #12171d; --accent: #57c2b8; --code: #1b232c }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif }
main { max-width: 54rem; margin: 0 auto; padding: 3rem 1.25rem 5rem }
h1 { margin: 0; font-size: 2rem; letter-spacing: -.02em }
h1 small { color: var(--soft); font-size: 1rem; font-weight: 400; letter-spacing: 0 }
h2 { margin: 2.5rem 0 .75rem; font-size: 1.1rem }
p.lead { margin: .4rem 0 0; color: var(--soft) }
dl { display: grid; grid-template-columns: 13rem 1fr; margin: 0; border-top: 1px solid var(--line) }
dt, dd { margin: 0; padding: .55rem 0; border-bottom: 1px solid var(--line) }
dt { color: var(--soft) }
pre, code { font: .875rem/1.5 ui-monospace, "DejaVu Sans Mono", monospace }
pre { overflow-x: auto; padding: .9rem 1rem; border-radius: .5rem; background: var(--code) }
a { color: var(--accent) }
section { margin-top: 1.5rem; padding-top: 1.25rem; border-top: 1px solid var(--line) }
section h3 { margin: 0 0 .25rem; font: 600 1rem ui-monospace, "DejaVu Sans Mono", monospace }
.verb { display: inline-block; min-width: 3.5rem; color: var(--accent) }
@media (max-width: 38rem) { dl { grid-template-columns: 1fr } dt { border: 0; padding-bottom: 0 } }
"""


def page_routes(desk: Desk, app: FastAPI) -> list[Route]:
    """The pages of a node."""

    async def front(_: Request) -> Response:
        return HTMLResponse(_front(desk), headers=SAFE)

    async def api(_: Request) -> Response:
        return HTMLResponse(_api(app.openapi()), headers=SAFE)

    async def style(_: Request) -> Response:
        return Response(STYLE, media_type="text/css", headers={"cache-control": "max-age=3600"})

    return [
        Route("/", front, methods=["GET"]),
        Route("/docs", api, methods=["GET"]),
        Route("/page.css", style, methods=["GET"]),
    ]


def _front(desk: Desk) -> str:
    node, settings = desk.node, desk.settings
    problem = desk.store_problem
    store = "answers" if problem is None else f"does not answer: {problem}"
    rate = f"{settings.default_limit} in {settings.default_window:g} s"
    runs = {
        "counts live in": settings.shown("engine"),
        "the store": store,
        "rules": settings.shown("rules") or "the starter rules",
        "checks without a limit": f"{rate}, counted by {settings.default_algorithm}",
        "worker processes": settings.workers,
    }
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
<h2>Try it</h2>
<pre>curl -i {escape(_base(node))}/check \\
     -H 'Content-Type: application/json' \\
     -d '{{"key": "user:42", "limit": 5, "window": 60}}'</pre>
<p>Send it six times: the sixth answer says no, and when to come back.</p>
<h2>Where to go</h2>
<p><a href="/docs">The API</a> · <a href="/openapi.json">OpenAPI</a> · <a href="/health">Health</a> · <a href="/metrics">Metrics</a></p>
""",
    )


def _base(node: Node) -> str:
    return node.settings.url(node.port)


def _api(schema: dict[str, Any]) -> str:
    sections = []
    for path, operations in schema["paths"].items():
        for verb, operation in operations.items():
            content = (
                operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            )
            example = content.get("example")
            asked = f"<pre>{escape(json.dumps(example, indent=2))}</pre>" if example else ""
            sections.append(
                f'<section><h3><span class="verb">{escape(verb.upper())}</span> {escape(path)}</h3>'
                f"<p><b>{escape(operation.get('summary', ''))}</b><br>{_prose(operation.get('description', ''))}</p>"
                f"{asked}{_list(_responses(operation))}</section>"
            )
    about = _prose(schema["info"].get("description", ""))
    return _page(
        "Headgate: the API",
        f'<h1>The API</h1><p class="lead">{about}</p><p><a href="/openapi.json">openapi.json</a> has every type.</p>'
        + "".join(sections),
    )


def _responses(operation: dict[str, Any]) -> dict[str, str]:
    return {status: one.get("description", "") for status, one in operation["responses"].items()}


def _prose(text: str) -> str:
    """Text with `code` in it."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))


def _list(entries: dict[str, Any]) -> str:
    rows = (
        f"<dt>{escape(str(name))}</dt><dd>{_prose(str(value))}</dd>"
        for name, value in entries.items()
    )
    return f"<dl>{''.join(rows)}</dl>"


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="stylesheet" href="/page.css"></head><body><main>{body}</main></body></html>'
    )
