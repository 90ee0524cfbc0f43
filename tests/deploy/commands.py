"""The command lines in what is deployed, each with the place where it is written."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Command(NamedTuple):
    """A command line as the container or the unit starts it."""

    place: str
    words: tuple[str, ...]

    @property
    def line(self) -> str:
        return shlex.join(self.words)


class Dockerfile:
    """The instructions of a Dockerfile: pairs of a keyword and its arguments, in order."""

    def __init__(self, path: Path = ROOT / "Dockerfile") -> None:
        text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
        self.instructions = [
            (keyword.upper(), arguments.strip())
            for keyword, _, arguments in (line.partition(" ") for line in text.splitlines() if line.strip())
        ]

    def last(self, keyword: str) -> str:
        """The arguments of the last instruction of a kind."""
        return [arguments for each, arguments in self.instructions if each == keyword][-1]

    def words(self, keyword: str) -> tuple[str, ...]:
        """The words of an instruction in its form as a list, which starts no shell."""
        _, bracket, rest = self.last(keyword).partition("[")
        return tuple(json.loads(bracket + rest))

    def command(self, *arguments: str) -> tuple[str, ...]:
        """What a container runs that is given these arguments, or none."""
        return self.words("ENTRYPOINT") + (arguments or self.words("CMD"))

    def commands(self) -> list[Command]:
        """All that the image runs by itself."""
        return [Command("Dockerfile", self.command()), Command("Dockerfile, HEALTHCHECK", self.words("HEALTHCHECK"))]
