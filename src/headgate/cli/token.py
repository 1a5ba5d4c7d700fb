"""`headgate token`: create, list and revoke the tokens in a service's token file."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..errors import UsageError
from ..service.security.tokens import (
    ROLES,
    Token,
    added,
    new_token,
    read_tokens,
    without,
    write_tokens,
)
from ._command import Sub, add_command
from ._service import add_json, print_json, print_table, seconds_of

if TYPE_CHECKING:
    import argparse

NAME: Final = "token"
HELP: Final = "create, list and revoke access tokens"
EPILOG: Final = """\
The file holds only hashes. A token is shown once, when it is created. A service
started with --tokens FILE notices changes within a second.

Roles, each including those before it: checker (send checks), viewer (read),
operator (reset, ban, override), admin (change rules).

examples:
  headgate token create ann --role operator --file tokens.json
  headgate token create prometheus --role viewer --for 365d --file tokens.json
  headgate token list --file tokens.json
  headgate token revoke ann --file tokens.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.epilog = EPILOG
    parser.set_defaults(group=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", prog=f"headgate {NAME}")
    for command in (CREATE, LIST, REVOKE):
        add_command(commands, command)


def run(args: argparse.Namespace) -> int:
    """Print the help: no command was given."""
    args.group.print_help(sys.stderr)
    return 2


def _add_create(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="whose it is")
    parser.add_argument("--role", metavar="ROLE", required=True, help=", ".join(ROLES))
    parser.add_argument("--for", metavar="SPAN", dest="span", help="when it expires, such as 90d")
    parser.add_argument(
        "--inline", action="store_true", help="print the hash for a setting; write no file"
    )
    _add_file(parser, required=False)


def _add_file(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument("--file", metavar="FILE", required=required, help="the file of tokens")
    add_json(parser)


def _create(args: argparse.Namespace) -> int:
    if (args.file is None) is not args.inline:
        raise UsageError("give the token file with --file FILE, or use --inline")
    if args.role not in ROLES:
        raise UsageError(f"{args.role!r:.40} is not a role; the roles are {', '.join(ROLES)}")
    now = datetime.fromtimestamp(args.clock.now_us() / 1_000_000, UTC)
    expires = None if args.span is None else now + timedelta(seconds=seconds_of(args.span))
    text, token = new_token(args.name, args.role, now=now, expires=expires)
    if args.inline:
        if expires is not None:
            raise UsageError("an inline token does not expire; leave out --for")
        kept = f"sha256:{token.role}:{token.name}:{token.sha256}"
        _print_token(args, text, token, f"for the setting 'tokens': {kept}")
        return 0
    path = Path(args.file)
    write_tokens(path, added(_read(path), token))
    _print_token(args, text, token, f"its hash is in {path}; the token is shown only this once")
    return 0


def _list(args: argparse.Namespace) -> int:
    tokens = read_tokens(args.file)
    if args.json:
        print_json({"tokens": [_shown(one) for one in tokens]})
        return 0
    print_table(
        ("NAME", "ROLE", "CREATED", "EXPIRES"),
        [(one.name, one.role, one.created_at or "-", one.expires_at or "never") for one in tokens],
    )
    return 0


def _revoke(args: argparse.Namespace) -> int:
    path = Path(args.file)
    write_tokens(path, without(read_tokens(args.file), args.name))
    if args.json:
        print_json({"revoked": args.name})
    else:
        print(f"{args.name} is revoked; services notice within a second")
    return 0


def _add_revoke(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="whose it is")
    _add_file(parser)


def _read(path: Path) -> tuple[Token, ...]:
    return read_tokens(str(path)) if path.exists() else ()


def _shown(token: Token) -> dict[str, str | None]:
    return {
        "name": token.name,
        "role": token.role,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
    }


def _print_token(args: argparse.Namespace, text: str, token: Token, note: str) -> None:
    """The token alone on stdout, so that it can be piped; the rest is for people."""
    if args.json:
        print_json({**_shown(token), "token": text, "sha256": token.sha256})
        return
    print(text)
    print(f"headgate: {note}", file=sys.stderr)


CREATE: Final = Sub("create", "create a token and show it once", _add_create, _create)
LIST: Final = Sub("list", "list the tokens", _add_file, _list)
REVOKE: Final = Sub("revoke", "revoke a token", _add_revoke, _revoke)
