"""`headgate rules list`: show the rules of a store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from .._terminal import Screen, escaped
from . import _online

if TYPE_CHECKING:
    import argparse

    from ...rules.model import Rule, RuleSet
    from ...rules.sources.base import Snapshot

NAME: Final = "list"
HELP: Final = "show the rules of a store"
EPILOG: Final = f"""\
{_online.PLACES}
examples:
  headgate rules list zookeeper://localhost
  headgate rules list rules.yaml --json | headgate rules check -
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    _online.add_url(parser)
    _online.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """List them."""
    return _online.answered(args, lambda: _list(args))


def _list(args: argparse.Namespace) -> int:
    from ...rules.format.parse import parse_documents  # noqa: PLC0415 - large, and not always needed

    with _online.opened(args.url) as store:
        snapshot = store.read()
        where = str(store)
    rules = parse_documents(snapshot.documents.items()).rules
    if args.json:
        print(json.dumps(_as_json(where, snapshot, rules)))
        return 0
    screen = Screen()
    screen.write(f"{escaped(where)}: {len(rules)} rules, {_revision_text(snapshot)}")
    if len(rules):
        screen.write()
        rows = [("RULE", "PRIORITY", "LIMITS", "ABOUT")]
        _online.table([*rows, *map(_row, rules)], screen)
    return 0


def _revision_text(snapshot: Snapshot) -> str:
    head = snapshot.head
    if head is None:
        return "not changed through Headgate"
    return f"revision {head.revision} by {escaped(head.author)}, {_online.moment(head.at)}"


def _row(rule: Rule) -> tuple[str, str, str, str]:
    match = rule.match
    methods = " ".join(sorted(match.methods))
    about = " ".join(filter(None, [methods, match.path_pattern or "everything"]))
    off = "" if rule.enabled else "off"
    shadow = "shadow" if rule.shadow else ""
    marks = ", ".join(filter(None, [off, shadow]))
    return (
        escaped(rule.rule_id),
        str(rule.priority),
        escaped(", ".join(_limit(rule))),
        escaped(about + (f" ({marks})" if marks else "")),
    )


def _limit(rule: Rule) -> list[str]:
    from ...rules.matching.explain import limit_text  # noqa: PLC0415 - not for every start

    document: Any = rule.document
    if document.get("rate") is not None:
        return [str(document["rate"])]
    return [limit_text(limit) for limit in rule.limits]


def _as_json(where: str, snapshot: Snapshot, rules: RuleSet) -> dict[str, Any]:
    return {
        "source": _online.source_json(where, snapshot, rules),
        "rules": [rule.document for rule in rules],
    }
