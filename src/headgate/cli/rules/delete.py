"""`headgate rules delete`: remove rules from a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from . import _online

if TYPE_CHECKING:
    import argparse

NAME: Final = "delete"
HELP: Final = "remove rules from a store"
EPILOG: Final = f"""\
{_online.PLACES}
examples:
  headgate rules delete zookeeper://localhost login
  headgate rules delete rules.yaml old-search old-login --note 'not used'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    _online.add_url(parser)
    parser.add_argument("rules", metavar="RULE", nargs="+", help="the id of a rule")
    _online.add_edit(parser)


def run(args: argparse.Namespace) -> int:
    """Delete what was asked for."""
    return _online.answered(args, lambda: _delete(args))


def _delete(args: argparse.Namespace) -> int:
    with _online.opened(args.url) as store:
        return _online.make(args, _online.editor(store, args).delete(args.rules))
