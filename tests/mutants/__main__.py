"""Changes the code in one place after the other, and lists the changes that no test notices.

    make mutants                                    # 60 of each area, drawn by a seed
    make mutants ARGS="--area core --number 500"
    make mutants ARGS="--file tracker/core/accounts.py --number 0"     # all of a file

The tests run in a copy of the repository. Each area has its own tests, the quick ones first; a mutant is killed by the
first that fails. What survives and is listed in ``equal.json`` makes no difference that anybody could see, for the
reason given there. Ends with 1 if anything else survives.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.mutations import Mutant, mutants

ROOT = Path(__file__).resolve().parents[2]
EQUAL = Path(__file__).with_name("equal.json")
_COPIED = ("tracker", "spark_client", "experiments", "examples", "proto", "tests", "README.md", "pyproject.toml")
_PASSED, _FAILED, _NO_TESTS = 0, 1, 5
_IN_PROCESS = "not grpc and not killed and not stopped"  # of the vectors' tests

# The tests of each area, in turns: the next only if the mutant has survived the ones before.
AREAS: dict[str, tuple[tuple[str, ...], ...]] = {
    "core": (
        ("tests/core/test_readings.py", "tests/core/test_interning.py", "tests/conformance", "-k", _IN_PROCESS),
        ("tests/core", "tests/model", "tests/simulation"),
    ),
    "journal": (("tests/journal",), ("tests/server",)),
    "server": (("tests/server",), ("tests/client/test_cli.py", "tests/client/test_client.py")),
    "relay": (("tests/relay",),),
    "client": (("tests/client",), ("tests/scale", "tests/server")),
}


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
    parser.add_argument("--json", type=Path, help="write the result there")
    given = parser.parse_args()
    areas = given.area or [area for area in AREAS if not given.file or any(_area(f) == area for f in given.file)]
    chosen = [mutant for area in areas for mutant in _drawn(area, given.file, given.number, given.seed)]
    equal = {tuple(each[:4]) for each in json.loads(EQUAL.read_text())}
    print(f"{len(chosen)} mutants in {', '.join(areas)}", flush=True)
    results: dict[Mutant, str] = {}
    with _copies(given.jobs) as copies, ThreadPoolExecutor(given.jobs) as pool:
        _check_unchanged(copies, areas)
        running = {pool.submit(_judge, copies, mutant): mutant for mutant in chosen}
        for number, future in enumerate(as_completed(running), 1):
            mutant = running[future]
            results[mutant] = future.result()
            print(f"{number}/{len(chosen)} {results[mutant]}: {mutant}", flush=True)
    survived = [mutant for mutant in chosen if results[mutant] == "survived"]
    unknown = [mutant for mutant in survived if mutant.key not in equal]
    _print_table(areas, results, equal)
    if given.json:
        listed = [{"mutant": mutant.key, "result": result} for mutant, result in results.items()]
        given.json.write_text(json.dumps(listed, indent=1) + "\n")
    print(f"\n{len(unknown)} survived, beside {len(survived) - len(unknown)} that are known to make no difference")
    for mutant in unknown:
        print(f"    {mutant}")
    return int(bool(unknown))


def _area(file: str) -> str:
    return Path(file).parts[1]


def _drawn(area: str, files: Sequence[str] | None, number: int, seed: int) -> list[Mutant]:
    paths = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tracker" / area).rglob("*.py"))
    found = [mutant for path in paths if not files or path in files for mutant in mutants(ROOT, path)]
    return random.Random(f"{area} {seed}").sample(found, min(number or len(found), len(found)))


@contextmanager
def _copies(number: int) -> Iterator[SimpleQueue[Path]]:
    """Copies of the repository, in which files are changed."""
    free: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for place in range(number):
            copy = Path(folder) / str(place)
            copy.mkdir()
            for name in _COPIED:
                source = ROOT / name
                if source.is_dir():
                    shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(source, copy / name)
            free.put(copy)
        yield free


def _check_unchanged(copies: SimpleQueue[Path], areas: Sequence[str]) -> None:
    """The tests pass on the code as it is; if not, nothing could be concluded from their failures."""
    copy = copies.get()
    for area in areas:
        for turn in AREAS[area]:
            began = time.monotonic()
            if (status := _run(copy, turn)) != _PASSED:
                raise SystemExit(f"{' '.join(turn)}: status {status} without any change; mend that first")
            print(f"{area}: {' '.join(turn)} pass in {time.monotonic() - began:.0f} s", flush=True)
    copies.put(copy)


def _judge(copies: SimpleQueue[Path], mutant: Mutant) -> str:
    copy = copies.get()
    path = copy / mutant.file
    source = path.read_bytes()
    try:
        path.write_bytes(mutant.applied(source))
        for turn in AREAS[_area(mutant.file)]:
            if _run(copy, turn) != _PASSED:
                return "killed"
        return "survived"
    finally:
        path.write_bytes(source)
        copies.put(copy)


def _run(copy: Path, arguments: Sequence[str]) -> int:
    # A mutant may never end: each test has a limit, far above what it takes.
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    command += ["-m", "not slow and not spark", "-o", "timeout=120", *arguments]
    with tempfile.TemporaryDirectory(prefix="mutants-run-") as folder:
        environment = {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "PYTHONPATH": str(copy)}
        status = subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False).returncode
    if status == _NO_TESTS:
        raise SystemExit(f"there are no such tests: {' '.join(arguments)}")
    return status


def _print_table(areas: Sequence[str], results: dict[Mutant, str], equal: set[tuple[str, ...]]) -> None:
    print("\n| area | mutants | killed | survived | of these, known to make no difference |\n|---|---|---|---|---|")
    for area in areas:
        own = [mutant for mutant in results if _area(mutant.file) == area]
        counts = Counter(results[mutant] for mutant in own)
        known = sum(mutant.key in equal for mutant in own if results[mutant] == "survived")
        print(f"| {area} | {len(own)} | {counts['killed']} | {counts['survived']} | {known} |")


if __name__ == "__main__":
    sys.exit(main())
