"""What a limit of FastAPI belongs to: `GET /shop/items/{item}`, never a concrete URL, which clients choose.

A path has the templates of the mounts that lead to its app. They are looked up in the outermost router, not worked out
from the values in the path: these can be spelt in many ways (`/tenants/7` and `/tenants/007`), may be equal to other
parts of the path, and are hidden where the route has a parameter of the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.routing import Host, Match, Mount

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .asgi import Scope


def route_name(scope: Scope, route: Any) -> str:
    """The name of a route. If a router does not tell its template, the endpoint's own name will do."""
    path = getattr(route, "path_format", None) or getattr(route, "path", None)
    root = _root_template(scope)
    if path is None or root is None:
        endpoint = scope.get("endpoint")
        name = getattr(endpoint, "__qualname__", type(endpoint).__qualname__)
        return f"{getattr(endpoint, '__module__', '')}.{name}"
    methods = ",".join(sorted(getattr(route, "methods", None) or ["WS"]))
    return f"{methods} {root}{path}"


def all_routes(routes: Iterable[Any]) -> Iterator[Any]:
    """All routes, those of routers that were included among them."""
    for route in routes:
        included = getattr(route, "effective_route_contexts", None)
        if included is None:
            yield route
        else:
            yield from included()


def _root_template(scope: Scope) -> str | None:
    """What the app is mounted under, with names in the place of values: `/tenants/{tenant}`; `None` if nobody knows."""
    root: str = scope.get("root_path", "").rstrip("/")
    outside: str | None = scope.get("app_root_path")
    if outside is None:  # Nothing is mounted: the server has set it.
        return root
    from_outside: Scope = {**scope, "root_path": outside, "path_params": {}}
    below = _mounted_under(getattr(scope.get("router"), "routes", ()), from_outside, root)
    return None if below is None else outside.rstrip("/") + below


def _mounted_under(routes: Iterable[Any], scope: Scope, root: str) -> str | None:
    """The templates of the mounts between these routes and the app whose root path this is."""
    if scope["root_path"].rstrip("/") == root:
        return ""
    for one in all_routes(routes):
        route: Any = getattr(one, "starlette_route", None) or one
        if not isinstance(route, Mount | Host):
            continue
        matched, inside = route.matches(scope)
        if matched is Match.NONE:
            continue
        below = _mounted_under(route.routes, {**scope, **inside}, root)
        if below is not None:
            return (route.path if isinstance(route, Mount) else "") + below
    return None
