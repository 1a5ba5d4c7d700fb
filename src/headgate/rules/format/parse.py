"""From bytes to a valid rule set, or to a list of all errors.

    bytes ──document──▶ plain values ──fields──▶ checked ──parts──▶ rules ──gathering──▶ one set

A set is the same whatever it was read from: rules are ordered by priority and then by name, and the version is a digest
of their content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..pacing import no_pause
from .document import Document
from .parsed import Case, Parsed
from .rule_set_builder import KNOWN, RuleSetBuilder, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ..model import Rule

__all__ = ["Case", "Parsed", "parse_documents", "parse_rule_document", "parse_rules", "version_of"]


def parse_rules(
    data: bytes | str, name: str = "rules", *, pause: Callable[[], None] = no_pause
) -> Parsed:
    r"""Read one document: a rule, a list of rules, or a file with `rules:` in it; JSON or YAML.

    `name` is the file's, for messages; the extensions `.json`, `.yaml` and `.yml` select the format, otherwise the
    content does. `pause` is called after every small piece of work, so that a thread can let others run
    (`pacing.pacer`). Raises `RulesError` with every problem that was found.

    >>> parsed = parse_rules("rule_id: all\nidentifier: ip_address\nrate: 100/minute")
    >>> parsed.rules["all"].limits
    (SlidingWindow(limit=100, window_us=60000000),)
    """
    return parse_documents([(name, data)], pause=pause)


def parse_documents(
    items: Iterable[tuple[str, bytes | str]], *, pause: Callable[[], None] = no_pause
) -> Parsed:
    """Read many named documents as one set, for sources with one rule per node.

    Rules of all documents are checked together: a duplicate id is an error that names both documents.
    """
    reading = RuleSetBuilder(pause, KNOWN)
    for name, data in items:
        reading.read(data, name)
    return reading.finish()


def parse_rule_document(document: Mapping[str, Any], name: str = "rule") -> Rule:
    """Read one rule from plain values, such as the body of a request."""
    reading = RuleSetBuilder(no_pause, None)
    reading.take(Document(name, dict(document), (), lambda: 0), one_rule=True)
    return reading.finish().rules.rules[0]
