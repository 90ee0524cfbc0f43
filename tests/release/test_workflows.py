"""Permissions of the host's workflows. `scripts.release.workflows` lints them; nothing here needs the linters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.check_docs import make_targets

WORKFLOWS = sorted((Path(__file__).parents[2] / ".github" / "workflows").glob("*.yml"))
JOBS = [
    (workflow.stem, name, job)
    for workflow in WORKFLOWS
    for name, job in yaml.safe_load(workflow.read_text())["jobs"].items()
]


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for workflow, name, job in JOBS:
        yield from ((f"{workflow}, {name}", step) for step in job["steps"])


def test_there_are_workflows() -> None:
    assert [workflow.stem for workflow in WORKFLOWS] == ["ci", "release"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.stem)
def test_actions_are_named_by_their_full_commit_and_version(workflow: Path) -> None:
    used = re.findall(r"uses: (.*)", workflow.read_text())
    assert used
    wrong = [each for each in used if not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)]
    assert not wrong


@pytest.mark.parametrize(("workflow", "name", "job"), JOBS, ids=lambda each: each if isinstance(each, str) else "")
def test_a_job_has_its_own_rights_and_a_time(workflow: str, name: str, job: dict[str, Any]) -> None:
    assert job["timeout-minutes"]
    writes = {right for right, how in job["permissions"].items() if how == "write"}
    allowed = {("release", "publish"): {"id-token"}, ("release", "notes"): {"contents"}}
    assert writes == allowed.get((workflow, name), set())


def test_only_jobs_that_wait_for_approval_get_secrets() -> None:
    for workflow, name, job in JOBS:
        if "secrets." in str(job) or job["permissions"].get("id-token"):
            assert job.get("environment") == "release", f"{workflow}, {name}"


@pytest.mark.parametrize(("place", "step"), [each for each in steps() if "run" in each[1]])
def test_what_runs_is_a_make_target_or_a_module_that_exists(place: str, step: dict[str, Any]) -> None:
    assert "${{" not in step["run"], "text of the host's becomes part of the program: give it as a variable"
    made = re.findall(r"\bmake ([a-z-]+)", step["run"])
    modules = re.findall(r" -m ([a-z_.]+)", step["run"])
    others = re.match(r"sudo apt-get|docker login|gh release", step["run"])
    assert made or modules or others, f"{place}: {step['run']}"
    assert set(made) <= make_targets(), place
    assert all(find_spec(module) for module in modules), place


def test_the_tests_are_those_of_ci_run() -> None:
    ours = re.findall(r"^make ([a-z-]+)", (Path(__file__).parents[2] / ".ci" / "run").read_text(), re.MULTILINE)
    [job] = [job for workflow, name, job in JOBS if (workflow, name) == ("ci", "tests")]
    theirs = [target for step in job["steps"] for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))]
    assert theirs == ours
