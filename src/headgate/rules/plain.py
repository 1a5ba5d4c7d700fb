"""Plain rules: those whose shape is seen to be right by one look at their text.

Checking a rule field by field takes longer than building it, and among thousands nearly all are right. So the table of
fields is also one regular expression, which runs over the JSON of a rule: whatever it recognises has passed every check, and
has each field under its first name, and no null. What it does not recognise is checked, and may be right as well.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

from .fields import RULE
from .sections import Section

if TYPE_CHECKING:
    from collections.abc import Callable

LONG: Final = frozenset({"exempt", "limits", "overrides"})
"""Fields that few rules have, and that would make the expression three times as long."""
_PLAIN: Final = Section(
    "rule", [one for one in RULE.fields if one.name not in LONG], complete=False
)


def is_plain(text: str) -> bool:
    """Whether `text`, a rule as JSON with sorted keys and no spaces, is certainly the shape of one."""
    return _glance()(text) is not None


@cache
def _glance() -> Callable[[str], re.Match[str] | None]:
    """Compiled when the first rule is read, which takes some milliseconds; who only has rules does not need it."""
    return re.compile(_PLAIN.glance()).fullmatch
