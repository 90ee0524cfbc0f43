"""The base image, and what the Dockerfile makes of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from .engine import HOME, IMAGE, MACHINE, ROOT, CheckError, engine

#: Files that Debian's slim images have and a minimal system has not: nothing is kept that a container does not need.
SLIM = {
    "etc/apt/apt.conf.d/docker-clean": 'Dir::Cache::pkgcache "";\nDir::Cache::srcpkgcache "";\n'
    'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb || true"; };\n',
    "etc/dpkg/dpkg.cfg.d/docker": "".join(
        f"path-exclude /usr/share/{each}/*\n" for each in ("doc", "info", "locale", "man")
    ),
}


def base_image(dockerfile: str) -> str:
    """Return the name of the one image that the Dockerfile begins with.

    Raises:
        CheckError: there are several.
    """
    names = re.findall(r"^FROM\s+(\S+)(?:\s+AS\s+(\S+))?", dockerfile, re.MULTILINE | re.IGNORECASE)
    stages = {stage for _, stage in names}
    bases = {name for name, _ in names if name not in stages}
    if len(bases) != 1:
        raise CheckError(f"the Dockerfile begins with several images: {', '.join(sorted(bases))}")
    return str(bases.pop())


def make_base(name: str) -> None:
    """Make the stand-in for Debian's image, unless an earlier run made it.

    Raises:
        CheckError: the name is not of one of Debian's slim images, or debootstrap failed.
    """
    release = re.fullmatch(r"debian:([a-z]+)-slim", name)
    if release is None:
        raise CheckError(f"debootstrap cannot stand in for {name}, only for debian:RELEASE-slim; use --pull")
    if not engine("podman", "image", "exists", f"localhost/{name}", may_fail=True).returncode:
        return
    tree = HOME / "base"
    shutil.rmtree(tree, ignore_errors=True)
    command = ["debootstrap", "--variant=minbase", release[1], str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckError(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-1000:]}")
    for unneeded in ("usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/man", "var/lib/apt/lists"):
        shutil.rmtree(tree / unneeded, ignore_errors=True)
        (tree / unneeded).mkdir()
    for package in (tree / "var/cache/apt").rglob("*.[bd]*"):
        package.unlink()
    for path, text in SLIM.items():
        (tree / path).write_text(text)
    archive = HOME / "base.tar"
    subprocess.run(["tar", "--directory", str(tree), "--create", "--file", str(archive), "."], check=True)
    engine("podman", "import", "--quiet", str(archive), f"localhost/{name}")
    archive.unlink()
    shutil.rmtree(tree)


def build(image: str, target: str, pull: bool) -> None:
    """Carry out the Dockerfile with the build context that `.dockerignore` leaves.

    Args:
        image: the name of what comes out.
        target: the stage that it is; empty: the last one.
        pull: whether the base image comes from a registry.
    """
    options = ["--format", "docker", "--isolation", "chroot", "--layers", "--tag", image]
    options += ["--target", target] if target else []
    options += ["--pull"] if pull else ["--pull-never"]
    if bundle := os.environ.get("PIP_CERT"):  # this machine's pip trusts a certificate authority of its own
        (HOME / "pip.conf").write_text("[global]\ncert = /run/pip-cert\n")
        options += ["--volume", f"{bundle}:/run/pip-cert:ro", "--volume", f"{HOME}/pip.conf:/etc/pip.conf:ro"]
    engine("buildah", "build", *options, str(ROOT))


def print_sizes(base: str) -> None:
    """Print the size that the image adds to its base, and the part of it that is copied from the first stage."""
    sizes = [int(engine("podman", "inspect", "--format", "{{.Size}}", name).stdout) / 1e6 for name in (base, IMAGE)]
    measure = ("--rm", "--network=none", "--entrypoint", "du", IMAGE, "--summarize", "--block-size=1", "/opt/tracker")
    copied = int(engine("podman", "run", *MACHINE, *measure).stdout.split()[0]) / 1e6
    print(f"    base {sizes[0]:.0f} MB, image {sizes[1]:.0f} MB, of which {copied:.0f} MB are /opt/tracker", flush=True)
