"""`headgate rules push`: put a file's rules in the place of all that a store has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from . import _online

if TYPE_CHECKING:
    import argparse

NAME: Final = "push"
HELP: Final = "replace all rules of a store by those of a file"
EPILOG: Final = f"""\
{_online.PLACES}
Everything is checked first; a bad file changes nothing. So does a push that
somebody else was faster than. The guard objects when no rule would be left,
when more than half of them would be gone, or when a limit would be raised
100-fold. It also looks at bursts, overrides and exemptions of everybody.

examples:
  headgate rules push rules.yaml zookeeper://localhost
  headgate rules push rules.yaml etcd://localhost --dry-run
  headgate rules push rules.yaml file:/etc/rules.yaml --note 'for the sale'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    parser.add_argument("file", metavar="FILE", help="rules, or '-' for stdin")
    _online.add_url(parser)
    _online.add_edit(parser)


def run(args: argparse.Namespace) -> int:
    """Push what was asked for."""
    return _online.answered(args, lambda: _push(args))


def _push(args: argparse.Namespace) -> int:
    data, name = _online.read_input(args.file)
    with _online.opened(args.url) as store:
        return _online.make(args, _online.editor(store, args).push(data, name))
