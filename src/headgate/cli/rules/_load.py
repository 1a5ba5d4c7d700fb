"""How commands read rules: from a file, from `-` for stdin, or from the URL of a source."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError

if TYPE_CHECKING:
    from ...rules.format.parse import Parsed

STDIN = "-"


def load_rules(where: str, *, as_nodes_do: bool = False) -> Parsed:
    """Read the rules in a file or a source.

    Raises `RulesError` for its contents, `ConfigError` for the file itself, `SourceError` for a source that cannot be
    reached. With `as_nodes_do`, an invalid rule of a store with one entry per rule is reported on stderr and left out.
    """
    from ...rules.format.document import MAX_BYTES  # noqa: PLC0415 - not for every start
    from ...rules.format.file_reading import read_file  # noqa: PLC0415
    from ...rules.format.parse import parse_rules  # noqa: PLC0415

    if "://" in where or where.startswith("file:"):
        return _from_source(where, as_nodes_do=as_nodes_do)
    if where != STDIN:
        return parse_rules(read_file(where), where)
    stdin: Any = sys.stdin
    if stdin is None:
        raise ConfigError("stdin is closed; give a file instead")
    return parse_rules(stdin.buffer.read(MAX_BYTES + 1), "stdin")


def _from_source(url: str, *, as_nodes_do: bool) -> Parsed:
    from ...rules.format.independent_documents import parse_separately  # noqa: PLC0415
    from ...rules.format.parse import parse_documents  # noqa: PLC0415
    from ._online import opened  # noqa: PLC0415
    from ._show import show_problems  # noqa: PLC0415

    with opened(url) as store:
        documents = store.read().documents
        separate = store.separate
    if not (as_nodes_do and separate):
        return parse_documents(documents.items())
    read = parse_separately(documents, {})
    show_problems(tuple(read.errors.values()), kind="warning")
    return read.parsed
