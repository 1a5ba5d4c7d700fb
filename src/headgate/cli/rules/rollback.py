"""`headgate rules rollback`: restore earlier rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from . import _online

if TYPE_CHECKING:
    import argparse

NAME: Final = "rollback"
HELP: Final = "restore the rules of an earlier revision"
EPILOG: Final = f"""\
{_online.PLACES}
Without a revision the newest change is undone. A rollback is a change like any
other: it is in the history, and can itself be undone. The change check accepts
it, unless no rule would be left.

examples:
  headgate rules rollback zookeeper://localhost
  headgate rules rollback rules.yaml 12
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    _online.add_url(parser)
    parser.add_argument(
        "revision", metavar="REVISION", type=int, nargs="?", help="as 'rules history' shows it"
    )
    _online.add_edit(parser)


def run(args: argparse.Namespace) -> int:
    """Go back."""
    return _online.answered(args, lambda: _rollback(args))


def _rollback(args: argparse.Namespace) -> int:
    with _online.opened(args.url) as store:
        return _online.make(args, _online.editor(store, args).rollback(args.revision))
