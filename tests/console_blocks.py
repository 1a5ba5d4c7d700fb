"""Console blocks of the documentation, run as their reader would run them.

A line that begins with `$` is a command; the lines below it are what it prints, with `...` for what differs from run to
run. `$ headgate …` runs in this process, `$ cat FILE` shows a file, `$ curl …` asks the service that `HEADGATE_URL`
names in the place of the one at its usual address, and so does `$ redis-cli -p 7379 …` with `NODE`; nothing else is
known here. Variables are those of the environment. Exit codes are not shown, so a command that fails must say so in
what it prints.
"""

import contextlib
import doctest
import io
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

from sybil import Example
from sybil.parsers.myst import CodeBlockParser

from headgate.cli import main

USUAL_ADDRESS = "http://127.0.0.1:8080"


class ConsoleBlockParser(CodeBlockParser):
    """Runs blocks of the language `console`."""

    language = "console"

    def evaluate(self, example: Example) -> str | None:
        """What is wrong with the block, if something is."""
        for command, expected in _sessions(str(example.parsed)):
            shown = _run(command)
            if not doctest.OutputChecker().check_output(expected, shown, doctest.ELLIPSIS):
                return f"$ {command}\nexpected:\n{expected}\nbut it printed:\n{shown}"
        return None


def _sessions(block: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        else:
            command, output = found[-1]
            found[-1] = (command, f"{output}{line}\n")
    return found


def _run(command: str) -> str:
    words = [os.path.expandvars(word) for word in shlex.split(command)]
    if words[0] == "cat":
        return Path(words[1]).read_text()
    if words[0] == "curl":
        asked = [word.replace(USUAL_ADDRESS, os.environ["HEADGATE_URL"]) for word in words]
        shown = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        return shown.removesuffix("\n") + "\n"
    if words[:3] == ["redis-cli", "-p", "7379"]:
        asked = ["redis-cli", "-u", os.environ["NODE"], *words[3:]]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert words[0] == "headgate", command
    output = io.StringIO()
    terminal: Any = output
    with contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(terminal):
        main(words[1:])
    return output.getvalue()
