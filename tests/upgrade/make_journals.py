"""Make `journals-0.1.tar.xz`: journals that a real server of release 0.1 has left, killed and stopped.

Run it in a clone with the whole history: `python -m tests.upgrade.make_journals`. Each journal has the first half of
vectors that release 0.1 knew, one job each, and the job of `shop.py`, carried out by the client of that time.
"""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import grpc

from tests.conformance.over_grpc import Driver
from tests.conformance.test_vectors import VECTORS, check, lines
from tests.upgrade.old_version import COMMIT, ROOT, OldServer, checked_out, run
from tracker.wire.gen import tracker_pb2_grpc

HERE = Path(__file__).parent
#: How each journal came to be: which vectors it has, the options of the server, and the signal that ended it. A log is
#: large: each sync has pages of its own.
ENDINGS = {
    "killed": (slice(0, None, 5), [], signal.SIGKILL),
    "killed-beside-snapshots": (slice(1, None, 5), ["--snapshot-every", "0"], signal.SIGKILL),
    "stopped": (slice(None), [], signal.SIGTERM),
}


def known_vectors() -> list[Path]:
    """Return the vectors that have not changed since release 0.1."""
    known = []
    for vector in VECTORS:
        shown = ["git", "show", f"{COMMIT}:{vector.relative_to(ROOT)}"]
        done = subprocess.run(shown, cwd=ROOT, capture_output=True, check=False)
        if done.returncode == 0 and done.stdout == vector.read_bytes():
            known.append(vector)
    return known


def make(tree: Path, directory: Path, vectors: list[Path], options: list[str], ending: signal.Signals) -> None:
    """Make one journal, and note what its readers know of it."""
    directory.mkdir()
    server = OldServer(tree, directory / "tracker.db", *options)
    with grpc.insecure_channel(server.address) as channel:
        stub = tracker_pb2_grpc.TrackerStub(channel)
        done = {}
        for vector in vectors:
            driver, steps = Driver(stub, vector.stem), lines(vector)
            done[vector.stem] = len(steps) // 2
            for number, line in enumerate(steps[: done[vector.stem]]):
                check(driver, number, line)
    shop = run(tree, str(HERE / "shop.py"), server.address)
    assert shop.returncode == 0, shop.stderr
    server.end(ending)
    (directory / "known.json").write_text(json.dumps({"vectors": done, "shop": json.loads(shop.stdout)}))
    server.log.unlink()
    (directory / "tracker.db-lock").unlink()  # it names the machine, and nobody holds it


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary, checked_out(Path(temporary)) as tree:
        made = Path(temporary) / "journals"
        made.mkdir()
        vectors = known_vectors()
        for name, (which, options, ending) in ENDINGS.items():
            make(tree, made / name, vectors[which], options, ending)
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w:xz") as archive:
            for path in sorted(made.rglob("*")):
                archive.add(path, str(path.relative_to(made)), recursive=False)
        (HERE / "journals-0.1.tar.xz").write_bytes(content.getvalue())
    print(f"{len(content.getvalue()) >> 10} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
