"""What Django's system checks say about the settings of a site. Codes are explained in docs/reference/checks.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core import checks

if TYPE_CHECKING:
    from collections.abc import Mapping


def find_mistakes(settings: Any, middleware: str) -> list[checks.CheckMessage]:
    """Everything that looks wrong in settings that can be used."""
    given: Mapping[str, Any] = getattr(settings, "HEADGATE", {})
    return [
        *_counted_twice(settings, middleware),
        *_rate_without_middleware(settings, given, middleware),
        *_one_count_per_process(settings, given),
        *_one_count_for_all(settings, given),
    ]


def _counted_twice(settings: Any, middleware: str) -> list[checks.CheckMessage]:
    if settings.MIDDLEWARE.count(middleware) < 2:
        return []
    return [
        checks.Error(
            "MIDDLEWARE has the rate limiter twice",
            hint="Remove one: responses would have the headers twice.",
            id="headgate.W005",
        )
    ]


def _rate_without_middleware(
    settings: Any, given: Mapping[str, Any], middleware: str
) -> list[checks.CheckMessage]:
    if given.get("RATE") is None or middleware in settings.MIDDLEWARE:
        return []
    return [
        checks.Error(
            "HEADGATE['RATE'] is set, but nothing applies it",
            hint=f"Add {middleware!r} to MIDDLEWARE.",
            id="headgate.E002",
        )
    ]


def _one_count_per_process(settings: Any, given: Mapping[str, Any]) -> list[checks.CheckMessage]:
    engine = given.get("ENGINE") or "memory://"
    if settings.DEBUG or not str(engine).startswith("memory:"):
        return []
    return [
        checks.Warning(
            "counts are kept in memory, so every worker process has its own counts",
            hint="Set HEADGATE['ENGINE'] to a store that workers share, such as redis://localhost.",
            id="headgate.W001",
        )
    ]


def _one_count_for_all(settings: Any, given: Mapping[str, Any]) -> list[checks.CheckMessage]:
    behind_proxy = settings.USE_X_FORWARDED_HOST or settings.SECURE_PROXY_SSL_HEADER
    if not behind_proxy or given.get("TRUSTED_PROXIES") or given.get("KEY"):
        return []
    return [
        checks.Warning(
            "the site is behind a proxy that HEADGATE does not trust, so all clients share one count",
            hint="Add its network to HEADGATE['TRUSTED_PROXIES'], such as ['10.0.0.0/8'].",
            id="headgate.W002",
        )
    ]
