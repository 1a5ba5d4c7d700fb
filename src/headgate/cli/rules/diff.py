"""`headgate rules diff`: compare two files or stores."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from .._terminal import BOLD, Screen, escaped
from . import _online
from .history import write_difference

if TYPE_CHECKING:
    import argparse

NAME: Final = "diff"
HELP: Final = "compare the rules of two files or stores"
EPILOG: Final = f"""\
{_online.PLACES}
examples:
  headgate rules diff rules.yaml zookeeper://localhost
  headgate rules diff etcd://staging etcd://production --json

exit codes: 0 the rules are the same, 1 they differ
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    parser.add_argument("old", metavar="OLD", help="a file or a URL")
    parser.add_argument("new", metavar="NEW", help="another one")
    _online.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compare what was named."""
    return _online.answered(args, lambda: _diff(args))


def _diff(args: argparse.Namespace) -> int:
    from ...rules.live.change_check import difference  # noqa: PLC0415 - not always needed

    old, new = _rules_of(args.old), _rules_of(args.new)
    found = difference(old, new)
    if args.json:
        changes = [
            {"rule_id": rule_id, "old": old.get(rule_id), "new": new.get(rule_id)}
            for rule_id in sorted({*found.added, *found.removed, *found.changed})
        ]
        print(json.dumps({"same": not found, "changes": changes}))
        return int(bool(found))
    screen = Screen()
    screen.write(str(found))
    for sign, rule_ids in (("-", found.removed), ("+", found.added), ("~", found.changed)):
        for rule_id in rule_ids:
            screen.write()
            screen.write(screen.paint(f"{sign} rule {escaped(rule_id)}", BOLD))
            write_difference(old.get(rule_id), new.get(rule_id), screen)
    return int(bool(found))


def _rules_of(where: str) -> dict[str, Any]:
    from ...rules.format.parse import parse_documents  # noqa: PLC0415 - large, and not always needed

    with _online.opened(where) as store:
        rules = parse_documents(store.read().documents.items()).rules
    return {rule.rule_id: rule.document for rule in rules}
