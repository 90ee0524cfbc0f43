"""The command lines in what is deployed, each with the place where it is written and the variables that it gets."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
#: The images that are built here, and the stages of the Dockerfile that they are.
STAGES = {"substream-tracker": "tracker", "substream-tracker-spark": "spark"}


class Command(NamedTuple):
    """A command line as the container or the unit starts it."""

    place: str
    words: tuple[str, ...]
    variables: Mapping[str, str] = {}


class Dockerfile:
    """The instructions of a Dockerfile's stage: pairs of a keyword and its arguments, in order.

    Args:
        stage: the stage, with the stages that it is made from; empty: the last one.
        path: the file.
    """

    def __init__(self, stage: str = "", path: Path = ROOT / "Dockerfile") -> None:
        text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
        self.stages: dict[str, list[tuple[str, str]]] = {}
        for keyword, _, arguments in (line.partition(" ") for line in text.splitlines() if line.strip()):
            if keyword.upper() == "FROM":
                base, _, name = arguments.split()
                current = self.stages[name] = [*self.stages.get(base, [])]
            current.append((keyword.upper(), arguments.strip()))
        self.instructions = self.stages[stage or list(self.stages)[-1]]

    def last(self, keyword: str) -> str:
        """Return the arguments of the last instruction of a kind."""
        return [arguments for each, arguments in self.instructions if each == keyword][-1]

    def words(self, keyword: str) -> tuple[str, ...]:
        """Return the words of an instruction in its form as a list, which starts no shell; none if there is none."""
        if keyword not in dict(self.instructions):
            return ()
        _, bracket, rest = self.last(keyword).partition("[")
        return tuple(json.loads(bracket + rest))

    def variables(self) -> dict[str, str]:
        """Return the environment of the image."""
        set_here = [arguments for keyword, arguments in self.instructions if keyword == "ENV"]
        return dict(word.split("=", 1) for arguments in set_here for word in shlex.split(arguments))

    def command(self, *arguments: str) -> tuple[str, ...]:
        """Return the command of a container that is given these arguments, or none."""
        return self.words("ENTRYPOINT") + (arguments or self.words("CMD"))

    def commands(self) -> list[Command]:
        """Return all that the image runs by itself."""
        return [
            Command("Dockerfile", self.command(), self.variables()),
            Command("Dockerfile, HEALTHCHECK", self.words("HEALTHCHECK"), self.variables()),
        ]


def of_compose(path: Path = DEPLOY / "compose.yaml") -> Iterator[Command]:
    """Yield the command lines of the services whose images are built here."""
    for name, service in yaml.safe_load(path.read_text())["services"].items():
        if service["image"] not in STAGES:
            continue
        assert service.get("build", {}) in ({}, "..", {"context": "..", "target": STAGES[service["image"]]})
        image = Dockerfile(STAGES[service["image"]])
        variables = image.variables() | service.get("environment", {})
        mounted = dict(reversed(each.split(":")[:2]) for each in service.get("volumes", []) if each.startswith("."))
        words = tuple(_in_the_clone(word, mounted) for word in image.command(*service.get("command", [])))
        yield Command(f"compose, {name}", words, variables)
        if "healthcheck" in service:
            kind, *checking = service["healthcheck"]["test"]
            assert kind == "CMD", "a shell would be in between"
            yield Command(f"compose, {name}, healthcheck", tuple(checking), variables)


def _in_the_clone(word: str, mounted: Mapping[str, str]) -> str:
    """Return a file in the container, as the file of the clone that is mounted there."""
    return str((DEPLOY / mounted[word]).relative_to(ROOT)) if word in mounted else word


def of_units(directory: Path = DEPLOY / "systemd") -> Iterator[Command]:
    """Yield the units' command lines, with what their files of variables have: set, and as a proposal in a comment."""
    for unit in sorted(directory.glob("*.service")):
        text = unit.read_text()
        [start] = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
        program, *arguments = shlex.split(start)
        assert program.startswith("/opt/substream-tracker/bin/")
        words = (Path(program).name, *arguments)
        variables = dict(re.findall(r"^Environment=(\w+)=(.*)$", text, re.MULTILINE))
        [file] = re.findall(r"^EnvironmentFile=-?/etc/substream-tracker/(.*)$", text, re.MULTILINE)
        lines = (directory / file).read_text()
        yield Command(unit.name, words, variables | dict(re.findall(r"^(\w+)=(.*)$", lines, re.MULTILINE)))
        yield Command(
            f"{unit.name}, all", words, variables | dict(re.findall(r"^#?([A-Z_]+)=(.*)$", lines, re.MULTILINE))
        )


def of_chart(resources: str, values: str) -> Iterator[Command]:
    """Yield the command lines of a rendered chart.

    Args:
        resources: the chart as helm renders it.
        values: the name of the set of values.
    """
    image = Dockerfile()
    for resource in yaml.safe_load_all(resources):
        for container in _containers(resource):
            place = f"chart, {values}, {resource['kind']} {container['name']}"
            given = {each["name"]: each["value"] for each in container.get("env") or [] if "value" in each}
            variables = image.variables() | given
            if "command" not in container:
                yield Command(place, image.command(*container.get("args", [])), variables)
            elif container["command"][0] in ("tracker", "python"):
                yield Command(place, (*container["command"], *container.get("args", [])), variables)
            for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
                if words := container.get(probe, {}).get("exec", {}).get("command"):
                    yield Command(f"{place}, {probe}", tuple(words), variables)


def _containers(resource: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield all containers of a resource, wherever it has them."""
    match resource:
        case {"containers": list(containers), **rest}:
            yield from containers
            yield from rest.get("initContainers", [])  # type: ignore[misc]
        case dict():
            for each in resource.values():
                yield from _containers(each)
