"""Builds the image by the Dockerfile's own steps, runs it, and checks what docs/howto/deploy.md promises of it.

    python -m scripts.image_check                # with sudo: it needs root
    python -m scripts.image_check --pull         # the base image from a registry
    python -m scripts.image_check --spark        # the image of the Spark job, too: half an hour, 3 GB

buildah carries out the Dockerfile, and podman runs the result, as any engine would: as the image's user, with a
read-only root file system, without capabilities and without a network. Inside, a program reports, and sees its
substream end; the container is stopped, killed and started again, and still has it.

Without `--pull` no image registry is needed: debootstrap makes the minimal system of the Debian release that the
Dockerfile's `FROM` names, with the settings of Debian's slim images, and this stands in for the base image.

Images and layers are kept in `.cache/image`; a second run carries out only the steps that changed. Exit status: 0
everything holds; 1 something does not, or could not be built; 2 a tool is missing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .building import base_image, build, make_base, print_sizes
from .engine import HOME, IMAGE, ROOT, CheckError
from .server import check_health_fails, check_server
from .spark import SPARK, check_spark

TOOLS = ("buildah", "crun", "debootstrap", "podman")
INSIDE = "IMAGE_CHECK_INSIDE"


def steps(pull: bool, spark: bool) -> list[tuple[str, Callable[[], None]]]:
    """Return the steps, with their names."""
    base = base_image((ROOT / "Dockerfile").read_text())
    made = [] if pull else [(f"debootstrap makes what stands in for {base}", lambda: make_base(base))]
    steps = [
        *made,
        ("buildah carries out the Dockerfile", lambda: build(IMAGE, "", pull)),
        ("sizes", lambda: print_sizes(base if pull else f"localhost/{base}")),
        ("podman runs the server", check_server),
        ("podman runs another program", check_health_fails),
    ]
    if spark:
        steps += [
            ("buildah carries out the Dockerfile's stage spark", lambda: build(SPARK, "spark", pull)),
            ("podman runs the Spark job with a relay", check_spark),
        ]
    return steps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pull", action="store_true", help="take the base image from a registry, not from debootstrap")
    parser.add_argument("--spark", action="store_true", help="build and run the image of the Spark job, too")
    arguments = parser.parse_args()
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        print(f"image-check: {', '.join(missing)} missing: apt-get install {' '.join(missing)}", file=sys.stderr)
        return 2
    if os.geteuid():
        print("image-check: debootstrap and buildah need root: sudo python3 -m scripts.image_check", file=sys.stderr)
        return 2
    if INSIDE not in os.environ:  # mounts that the engines make end with this process
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, "-m", "scripts.image_check", *sys.argv[1:]])
    if Path("/sys/fs/cgroup/unified").is_dir():  # crun refuses two versions of control groups beside one another
        subprocess.run(["umount", "/sys/fs/cgroup/unified"], check=False, capture_output=True)
    HOME.mkdir(parents=True, exist_ok=True)
    for title, step in steps(arguments.pull, arguments.spark):
        began = time.monotonic()
        print(f"--  {title}", flush=True)
        try:
            step()
        except CheckError as failed:
            print(f"image-check: {failed}", file=sys.stderr)
            return 1
        print(f"    {time.monotonic() - began:.0f} s", flush=True)
    print("the image is what docs/howto/deploy.md promises")
    return 0


if __name__ == "__main__":
    sys.exit(main())
