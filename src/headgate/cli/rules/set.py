"""`headgate rules set`: add or change single rules of a store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from ...errors import UsageError
from . import _online

if TYPE_CHECKING:
    import argparse

    from ...rules.live.editing import Editor, EditPlan

NAME: Final = "set"
HELP: Final = "add or change rules, and keep the others"
EPILOG: Final = f"""\
{_online.PLACES}
A value is JSON if it can be read as such, else text. An empty one removes the
field.

examples:
  headgate rules set zookeeper://localhost login.yaml
  headgate rules set etcd://localhost login rate=20/minute shadow=true
  headgate rules set rules.yaml login match.methods='["POST"]' description=
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.usage = "headgate rules set URL FILE\n       headgate rules set URL RULE FIELD=VALUE ..."
    parser.epilog = EPILOG
    _online.add_url(parser)
    parser.add_argument(
        "what", metavar="FILE | RULE", help="rules in a file ('-': stdin), or an id"
    )
    parser.add_argument("fields", metavar="FIELD=VALUE", nargs="*", help="fields to set")
    _online.add_edit(parser)


def run(args: argparse.Namespace) -> int:
    """Set what was asked for."""
    return _online.answered(args, lambda: _set(args))


def _set(args: argparse.Namespace) -> int:
    with _online.opened(args.url) as store:
        return _online.make(args, _plan(_online.editor(store, args), args))


def _plan(editor: Editor, args: argparse.Namespace) -> EditPlan:
    from ...rules.format.parse import parse_rules  # noqa: PLC0415

    if args.fields:
        return editor.set_fields(args.what, dict(map(_field, args.fields)))
    data, name = _online.read_input(args.what)
    return editor.set([rule.document for rule in parse_rules(data, name).rules])


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(
            f"a field must have the form FIELD=VALUE, such as rate=20/minute, not {text!r}"
        )
    if not value:
        return name, None
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
