"""Changes the code in one place after the other, and lists the changes that no test notices.

    python -m tests.mutants                                           # 60 of each area, drawn by a seed
    python -m tests.mutants --area core --number 500
    python -m tests.mutants --file tracker/core/accounts.py --number 0     # all of a file
    python -m tests.mutants --file tracker/server/limits.py --tests tests/server/test_bounds.py

The tests run in a copy of the repository. Each area has its own tests; a mutant is killed by the first that fails. So
the tests that have killed most stand first, then the quickest (`ordering`), and nothing is cut down to be read. Mutants
in ``equal.json`` make no difference that anybody could see, for the reason given there, and are not run. The exit
status is 1 if another one survives.

Survivors cost the time: each meets all tests of its area. With ``--tests`` they meet only these, which is for a first
look; other tests of the area may notice what they do not.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import py_compile
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

from tests.mutants.mutations import Mutant, mutants
from tests.mutants.ordering import Known

ROOT = Path(__file__).resolve().parents[2]
EQUAL = Path(__file__).with_name("equal.json")
_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "dist", "site", "spark-warehouse")
_PASSED, _NO_TESTS = 0, 5
KILLED, SURVIVED, EQUAL_RESULT = "killed", "survived", "equal"

# The tests of each area. Those that show that a test can fail have nothing to find here.
AREAS: dict[str, tuple[str, ...]] = {
    "core": ("tests/core", "tests/simulation", "-k", "not found_out and not cut_down"),
    "journal": (
        "tests/journal",
        "tests/backup",
        "tests/server/test_durability.py",
        "tests/server/test_recovery.py",
        "tests/server/test_marks.py",
    ),
    "server": (
        *("tests/server", "tests/cli", "tests/client/test_client.py", "tests/client/test_tokens.py"),
        *("tests/security", "tests/metrics"),
    ),
    "relay": ("tests/relay", "tests/security/test_relay.py", "tests/metrics/test_relay.py"),
    "client": (
        *("tests/client", "tests/scale", "tests/cli/test_commands.py", "tests/relay/test_sockets.py"),
        *("tests/security/test_clients.py", "tests/security/test_quotas.py", "tests/metrics/test_client.py"),
    ),
    "release": tuple(f"tests/spark/test_{name}.py" for name in ("parts", "moving", "state_stores", "shared_ends")),
}

# Of a release in Spark, what tests try without a session.
_WITHOUT_SPARK = ("moving.py", "parts.py", "state.py")


def main() -> int:
    """Run, and print what survives.

    Returns:
        0 if nothing survives but what is known to make no difference.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--area", action="append", choices=tuple(AREAS), help="only this one; may be repeated")
    parser.add_argument("--file", action="append", help="only of this file; may be repeated")
    parser.add_argument("--number", type=int, default=60, help="of mutants of each area; 0: all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="that draws them (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="at a time (default: %(default)s)")
    parser.add_argument("--tests", type=shlex.split, help="arguments for pytest, in place of those of the area")
    parser.add_argument("--json", type=Path, help="write the result there")
    given = parser.parse_args()
    areas = given.area or [area for area in AREAS if not given.file or any(_area(f) == area for f in given.file)]
    chosen = [mutant for area in areas for mutant in _drawn(area, given.file, given.number, given.seed)]
    equal = {tuple(each[:4]) for each in json.loads(EQUAL.read_text())}
    results = {mutant: EQUAL_RESULT for mutant in chosen if mutant.key in equal}
    judged = [mutant for mutant in chosen if mutant not in results]
    print(f"{len(chosen)} mutants in {', '.join(areas)}", flush=True)
    began = time.monotonic()
    with _copies(given.jobs) as copies, ThreadPoolExecutor(given.jobs) as pool:
        tests = {area: _Tests(given.tests or AREAS[area], copies) for area in areas}
        running = {pool.submit(tests[_area(mutant.file)].judge, mutant): mutant for mutant in judged}
        for number, future in enumerate(as_completed(running), 1):
            mutant, killer = running[future], future.result()
            results[mutant] = KILLED if killer else SURVIVED
            at = time.monotonic() - began
            print(f"{at:.0f} s, {number}/{len(judged)} {results[mutant]}: {mutant} {killer}", flush=True)
    _print_table(areas, results)
    if given.json:
        listed = [{"mutant": mutant.key, "result": result} for mutant, result in results.items()]
        given.json.write_text(json.dumps(listed, indent=1) + "\n")
    survived = [mutant for mutant in chosen if results[mutant] == SURVIVED]
    print(f"\n{len(survived)} survived, after {(time.monotonic() - began) / 60:.0f} min")
    for mutant in survived:
        print(f"    {mutant}")
    return int(bool(survived))


def _area(file: str) -> str:
    return Path(file).parts[1]


def _drawn(area: str, files: Sequence[str] | None, number: int, seed: int) -> list[Mutant]:
    paths = sources(area)
    found = [mutant for path in paths if not files or path in files for mutant in mutants(ROOT, path)]
    return random.Random(f"{area} {seed}").sample(found, min(number or len(found), len(found)))


def sources(area: str) -> list[str]:
    """Return the modules of an area, relative to the repository."""
    if area == "release":
        return [f"spark_client/release/{name}" for name in _WITHOUT_SPARK]
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tracker" / area).rglob("*.py"))


@contextmanager
def _copies(number: int) -> Iterator[SimpleQueue[Path]]:
    """Yield copies of the repository, in which files are changed."""
    free: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for place in range(number):
            copy = Path(folder) / str(place)
            shutil.copytree(ROOT, copy, ignore=_LEFT_OUT)
            # Compiled once, and known by its content: a mutant may have the age and the size of what it replaces.
            compileall.compile_dir(copy, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
            free.put(copy)
        yield free


class _Tests:
    """The tests that judge, and what each has found; for several threads.

    Args:
        chosen: arguments for pytest, which choose the tests.
        copies: to run them in. They have to pass on the code as it is, or nothing could be concluded from a failure.
    """

    def __init__(self, chosen: Sequence[str], copies: SimpleQueue[Path]) -> None:
        self._chosen = chosen
        self._copies = copies
        self._known: dict[str, Known] = {}
        self._lock = Lock()
        began = time.monotonic()
        with self._copy() as copy:
            seconds, failed = self._run(copy)
        if failed:
            raise SystemExit(f"{failed} fails without any change; mend that first")
        self._known = {name: {"seconds": taken, "kills": 0} for name, taken in seconds.items()}
        print(f"{len(seconds)} tests pass in {time.monotonic() - began:.0f} s", flush=True)

    def judge(self, mutant: Mutant) -> str:
        """Return the test that finds a mutant; empty: none does."""
        with self._copy() as copy:
            path = copy / mutant.file
            source = path.read_bytes()
            try:
                path.write_bytes(mutant.applied(source))
                _, killer = self._run(copy)
            finally:
                path.write_bytes(source)
        with self._lock:
            if killer in self._known:
                self._known[killer]["kills"] += 1
        return killer

    @contextmanager
    def _copy(self) -> Iterator[Path]:
        copy = self._copies.get()
        try:
            yield copy
        finally:
            self._copies.put(copy)

    def _run(self, copy: Path) -> tuple[dict[str, float], str]:
        """Run the tests. Return how long each took, and the first that failed."""
        with tempfile.TemporaryDirectory(prefix="mutants-run-") as folder:
            order, note = Path(folder) / "order.json", Path(folder) / "note.json"
            with self._lock:
                order.write_text(json.dumps(self._known))
            command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
            command += ["-p", "tests.mutants.ordering", "--order-file", str(order), "--note-file", str(note)]
            command += ["--hypothesis-seed", "0", "-m", "not slow and not spark", *self._chosen]
            environment = {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "PYTHONPATH": str(copy)}
            ended = _run_alone(command, copy, environment)
            if ended == _NO_TESTS:
                raise SystemExit(f"there are no such tests: {shlex.join(self._chosen)}")
            noted: dict[str, Any] = json.loads(note.read_text()) if note.exists() else {"seconds": {}, "failed": ""}
        # A mutant that cannot even be imported fails before any test does.
        return noted["seconds"], noted["failed"] or ("" if ended == _PASSED else "before any test")


def _run_alone(command: Sequence[str], folder: Path, environment: dict[str, str]) -> int:
    """Return the exit status of a command; nothing that it has started is left, however servers spin."""
    output: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **output) as run:
        try:
            return run.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)


def _print_table(areas: Sequence[str], results: dict[Mutant, str]) -> None:
    print("\n| area | mutants | killed | survived | known to make no difference |\n|---|---|---|---|---|")
    for area in areas:
        counts = Counter(result for mutant, result in results.items() if _area(mutant.file) == area)
        row = (area, counts.total(), counts[KILLED], counts[SURVIVED], counts[EQUAL_RESULT])
        print(f"| {' | '.join(map(str, row))} |")


if __name__ == "__main__":
    sys.exit(main())
