"""`headgate rules schema`: the JSON Schema of rules, for editors and other programs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

NAME: Final = "schema"
HELP: Final = "print the JSON Schema of rules, for editors"
EPILOG: Final = """\
examples:
  headgate rules schema > rules.schema.json

Then write this as the first line of a YAML file beside it:
  # yaml-language-server: $schema=./rules.schema.json
or this into a JSON file:
  "$schema": "./rules.schema.json"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.usage = "headgate rules schema"
    parser.epilog = EPILOG


def run(args: argparse.Namespace) -> int:  # noqa: ARG001 - every command takes them
    """Print it."""
    from ...rules.format.schema import schema_text  # noqa: PLC0415 - not for every start

    sys.stdout.write(schema_text())
    return 0
