"""The dashboard's files: the page at `/`, and what it loads from `/assets`.

The address of a file contains a hash over all of them, so that browsers may cache it indefinitely and never mix two
versions. The policy allows only these files and requests to this service: no other host, no inline script or style, and
no way to turn text into markup.
"""

from __future__ import annotations

import gzip
import hashlib
from importlib import resources
from typing import TYPE_CHECKING, Final

from starlette.responses import Response
from starlette.routing import Route

from ... import dashboard as page

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}
MEDIA_TYPES: Final = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
KEEP: Final = {
    "cache-control": "max-age=31536000, immutable",
    "vary": "accept-encoding",
}


def dashboard_routes() -> list[Route]:
    """The page, and one route per file that it loads."""
    folder = resources.files(page)
    found = sorted(folder.joinpath("assets").iterdir(), key=lambda one: one.name)
    files = {one.name: one.read_bytes() for one in found if _kind(one.name) in MEDIA_TYPES}
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name} {len(content)} ".encode() + content)
    assets = f"/assets/{digest.hexdigest()[:16]}"
    html = folder.joinpath("index.html").read_text(encoding="utf-8")
    html = html.replace('"/assets/', f'"{assets}/')
    return [
        Route("/", _sender(html.encode(), "text/html", HEADERS), methods=["GET"]),
        *(
            Route(
                f"{assets}/{name}",
                _sender(content, MEDIA_TYPES[_kind(name)], KEEP),
                methods=["GET"],
            )
            for name, content in files.items()
        ),
    ]


def _kind(name: str) -> str:
    return name.rpartition(".")[2]


def _sender(
    content: bytes, media_type: str, headers: dict[str, str]
) -> Callable[[Request], Awaitable[Response]]:
    """Serves a file, compressed once for clients that support it."""
    packed = gzip.compress(content, mtime=0)

    async def send(request: Request) -> Response:
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(
                packed, media_type=media_type, headers={**headers, "content-encoding": "gzip"}
            )
        return Response(content, media_type=media_type, headers=headers)

    return send
