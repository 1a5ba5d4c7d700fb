"""How commands read a rules file: a name, or `-` for stdin."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError

if TYPE_CHECKING:
    from ...rules.parse import Parsed

STDIN = "-"


def load_rules(file: str) -> Parsed:
    """Read the rules in `file`; raises `RulesError` for what is in it, and `ConfigError` for the file itself."""
    from ...rules.document import MAX_BYTES  # noqa: PLC0415 - not for every start
    from ...rules.parse import parse_rules  # noqa: PLC0415
    from ...rules.reading import read_file  # noqa: PLC0415

    if file != STDIN:
        return parse_rules(read_file(file), file)
    stdin: Any = sys.stdin
    if stdin is None:
        raise ConfigError("stdin is closed; name a file instead")
    return parse_rules(stdin.buffer.read(MAX_BYTES + 1), "stdin")
