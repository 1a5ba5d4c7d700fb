"""Container files, read as far as ours go."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

DEPLOY = Path(__file__).parents[2] / "deploy"


class Instruction(NamedTuple):
    """One of a stage, such as `RUN` and what follows it."""

    name: str
    rest: str


@dataclass
class Stage:
    """From one `FROM` to the next."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        """What follows each instruction of this name."""
        return [one.rest for one in self.instructions if one.name == name]

    def last(self, name: str) -> str:
        """What follows the last instruction of this name, which is the one that holds."""
        return self.all(name)[-1]

    @property
    def environment(self) -> dict[str, str]:
        """Every `ENV`."""
        words = [word for rest in self.all("ENV") for word in shlex.split(rest)]
        return dict(word.split("=", 1) for word in words)

    @property
    def command(self) -> list[str]:
        """What a container runs if nothing else is said."""
        entry = [json.loads(rest) for rest in self.all("ENTRYPOINT")[-1:]]
        return [*(entry[0] if entry else []), *json.loads(self.last("CMD"))]

    @property
    def health_check(self) -> list[str]:
        """What says whether it is well."""
        options, _, command = self.last("HEALTHCHECK").partition("CMD ")
        assert "--interval=" in options
        words: list[str] = json.loads(command)
        return words


def read(path: Path) -> list[Stage]:
    """The stages of a container file."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
    stages: list[Stage] = []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        name, _, rest = line.partition(" ")
        if name == "FROM":
            base, _, alias = rest.partition(" AS ")
            stages.append(Stage(base, alias))
        elif name:
            stages[-1].instructions.append(Instruction(name, rest))
    return stages
