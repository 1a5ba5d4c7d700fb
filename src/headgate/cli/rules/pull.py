"""`headgate rules pull`: write the rules of a store to a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...errors import ConfigError
from . import _online

if TYPE_CHECKING:
    import argparse

NAME: Final = "pull"
HELP: Final = "write the rules of a store to a file"
EPILOG: Final = f"""\
{_online.PLACES}
FILE is YAML, or JSON if it ends in .json. An existing file is kept without
--force. Without FILE the rules are printed. You can push the result again.

examples:
  headgate rules pull zookeeper://localhost rules.yaml
  headgate rules pull etcd://localhost | headgate rules check -
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    _online.add_url(parser)
    parser.add_argument("file", metavar="FILE", nargs="?", default="-", help="'-' prints")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    _online.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Pull what was asked for."""
    return _online.answered(args, lambda: _pull(args))


def _pull(args: argparse.Namespace) -> int:
    from ..._atomic_file import replace_file  # noqa: PLC0415
    from ...rules.format.parse import parse_documents  # noqa: PLC0415 - large, and not always needed

    file = Path(args.file)
    if args.file != "-" and file.exists() and not args.force:
        raise ConfigError(f"{args.file} already exists; choose another name, or use --force")
    with _online.opened(args.url) as store:
        snapshot = store.read()
        where = str(store)
    rules = parse_documents(snapshot.documents.items()).rules
    source = _online.source_json(where, snapshot, rules)
    text = _text(
        {"source": source, "rules": [_plain(rule.document) for rule in rules]},
        as_json=file.suffix == ".json",
    )
    if args.file == "-":
        sys.stdout.write(text)
        return 0
    replace_file(file, text.encode())
    if args.json:
        print(json.dumps({"wrote": args.file, "rules": len(rules), **source}))
    else:
        print(f"wrote {args.file}: {len(rules)} rules of {where}, version {rules.version}")
    return 0


def _text(document: dict[str, Any], *, as_json: bool) -> str:
    from ...rules.sources.file_text import dump  # noqa: PLC0415

    return json.dumps(document, indent=2, ensure_ascii=False) + "\n" if as_json else dump(document)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=dict))
