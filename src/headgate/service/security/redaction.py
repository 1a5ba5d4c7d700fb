"""Redaction: logs, pages, errors and banners show URLs without their passwords."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"
_USERINFO = re.compile(r"(?<=://)([^:/?#@]*)(:[^/?#]*)?@")
_OPTION = re.compile(r"((?:password|secret|token)=)[^&#]*", re.IGNORECASE)


def redacted(url: str) -> str:
    """A URL without its passwords; other text is returned unchanged.

    >>> redacted("redis://user:pass:word@db:6379/0?secret=x&deadline=1")
    'redis://user:***@db:6379/0?secret=***&deadline=1'
    """
    found = _USERINFO.sub(lambda user: f"{user[1]}{':' + HIDDEN if user[2] else ''}@", url)
    return _OPTION.sub(rf"\g<1>{HIDDEN}", found)
