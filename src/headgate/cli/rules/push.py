"""`headgate rules push`: replace all rules of a store by those of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from . import _online

if TYPE_CHECKING:
    import argparse

NAME: Final = "push"
HELP: Final = "replace all rules of a store by those of a file"
EPILOG: Final = f"""\
{_online.PLACES}
Everything is checked first; an invalid file changes nothing, and neither does a
push after another change. The change check objects if more than half of the
rules would be gone, or if a limit would be raised 100-fold, including bursts,
overrides and exemptions of everything. --force overrides it. An empty rule set
needs --allow-empty: without it, nodes treat an empty store as lost, and keep
their rules.

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
