"""`headgate rules init`: a commented rules file to start from, and the schema for editors."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import ConfigError, UsageError
from ._online import add_json

if TYPE_CHECKING:
    import argparse

NAME: Final = "init"
HELP: Final = "write a rules file to start from"
EPILOG: Final = """\
It also writes rules.schema.json next to FILE: editors with YAML support read
the first line of the rules and complete fields and values from it.

examples:
  headgate rules init
  headgate rules init config/rules.yaml
  headgate rules init -                    print it, write nothing
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.usage = "headgate rules init [FILE] [--force] [--json]"
    parser.epilog = EPILOG
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default="rules.yaml",
        help="the file to write; '-' prints",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write both files."""
    from ...rules.format.schema import FILE_NAME, schema_text  # noqa: PLC0415 - not for every start
    from ...rules.format.starter import STARTER  # noqa: PLC0415

    if args.file == "-":
        sys.stdout.write(json.dumps({"text": STARTER}) + "\n" if args.json else STARTER)
        return 0
    file = Path(args.file)
    if file.suffix not in {".yaml", ".yml"}:
        raise UsageError(
            f"the starter file is YAML with comments, but {args.file} does not end in .yaml; call it rules.yaml"
        )
    _write(file, STARTER, force=args.force)
    schema = file.with_name(FILE_NAME)
    stays = schema.exists() and not args.force
    if not stays:
        _write(schema, schema_text(), force=args.force)
    if args.json:
        wrote, kept = ([file], [schema]) if stays else ([file, schema], [])
        print(json.dumps({"wrote": [*map(str, wrote)], "kept": [*map(str, kept)]}))
        return 0
    wrote_it = (
        f"wrote {file}; kept the existing {schema}" if stays else f"wrote {file} and {schema}"
    )
    print(f"{wrote_it}; next: headgate rules check {file}")
    return 0


def _write(file: Path, text: str, *, force: bool) -> None:
    """Write a new file, or replace one with --force, atomically.

    A symbolic link is not followed.
    """
    from ..._atomic_file import write_part  # noqa: PLC0415 - not for every start

    if force:
        with write_part(file.absolute(), text.encode()) as part:
            part.replace(file)
        return
    try:
        made = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        raise ConfigError(f"{file} already exists; choose another name, or use --force") from None
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror}; its folder must exist and be writable"
        ) from None
    try:
        with os.fdopen(made, "w", encoding="utf-8", newline="\n") as opened:
            opened.write(text)
    except BaseException:
        file.unlink(missing_ok=True)
        raise
