"""The wheel where a job runs: docs/howto/install.md. Libraries are those of this environment, and `pyspark-client`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
import pytest

from examples.services.connect import ConnectServer
from scripts.release.building import build
from scripts.release.environments import Environment, ReleaseError, environment, tools
from tests.classes import QUICK
from tests.client.processes import Server

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(1800)]

PROGRAM = Path(__file__).with_name("installed.py")
SPARK = Path(pyspark.__file__).parent
COMPILERS = {"as", "c++", "c89", "c99", "cargo", "cc", "clang", "cpp", "g++", "gcc", "ld", "make", "rustc"}


class Ran(NamedTuple):
    """The output of `installed.py`: where its driver and a task ran, and what was released."""

    driver: list[str]
    task: list[str]
    released: list[list[Any]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this source tree."""
    try:
        return build(tmp_path_factory.mktemp("dist"))[1]
    except (ReleaseError, subprocess.CalledProcessError) as missing:
        pytest.skip(f"what builds a wheel is not in .cache/dist and cannot be downloaded: {missing}")


def made(home: Path) -> Environment:
    """Return an environment with the libraries of this one, and without this package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    [packages] = home.glob("lib/*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return Environment(home)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment that lacks this package only."""
    bare = made(tmp_path_factory.mktemp("libraries") / "environment")
    bare.run("-c", "import spark_client", directory=bare.home, status=1)
    return bare


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment into which the wheel was installed."""
    whole = made(tmp_path_factory.mktemp("installed") / "environment")
    pip = ("-m", "pip", "--python", str(whole.python), "install", "--quiet", "--no-index", "--no-deps")
    tools().run(*pip, "--only-binary", ":all:", str(wheel))
    return whole


def run(command: list[str], path: Path, **variables: str) -> Ran:
    """Run the program to its end, in an empty folder."""
    done = subprocess.run(
        command, cwd=path, env={**environment(), **variables}, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    places, released = map(json.loads, [line for line in done.stdout.splitlines() if line.startswith(("{", "["))])
    return Ran(**places, released=released)


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """Return Spark, with a folder of this test's own for what its workers unpack."""
    home = tmp_path / "spark"
    home.mkdir()
    for each in SPARK.iterdir():
        (home / each.name).symlink_to(each)
    return home


def submit(home: Path, path: Path, *options: str, **variables: str) -> Ran:
    """Run the program by `spark-submit`, with an executor that is a process of its own."""
    quick = [word for role in ("driver", "executor") for word in ("--conf", f"spark.{role}.extraJavaOptions={QUICK}")]
    command = [str(home / "bin" / "spark-submit"), "--master", "local-cluster[1,1,1024]", *quick, *options]
    return run([*command, str(PROGRAM), str(path)], path, SPARK_HOME=str(home), **variables)


def test_a_query_and_its_tracker_run_without_a_compiler(installed: Environment, tmp_path: Path) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    for folder in reversed(os.environ["PATH"].split(os.pathsep)):
        for each in Path(folder).iterdir() if Path(folder).is_dir() else []:
            (commands / each.name).unlink(missing_ok=True)
            if each.name.rpartition("-gnu-")[2].partition("-")[0] not in COMPILERS:
                (commands / each.name).symlink_to(each)
    assert not any(shutil.which(compiler, path=str(commands)) for compiler in COMPILERS)
    there = {"PATH": str(commands), "CC": "/bin/false", "CXX": "/bin/false", "PYSPARK_PYTHON": str(installed.python)}
    ran = run([str(installed.python), str(PROGRAM), str(tmp_path)], tmp_path, **there)
    assert ran.released == [["berlin", 2]]
    assert all(each.startswith(str(installed.home)) for each in ran.driver + ran.task)


def test_an_archive_brings_the_package_to_driver_and_executors(
    installed: Environment, spark_home: Path, tmp_path: Path
) -> None:
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(installed.home, ".")
    with tarfile.open(tmp_path / "environment.tar.gz") as archive:
        archive.extractall(tmp_path / "here", filter="fully_trusted")
    ran = submit(
        spark_home,
        tmp_path,
        "--archives",
        "environment.tar.gz#environment",
        PYSPARK_DRIVER_PYTHON=str(tmp_path / "here" / "bin" / "python"),
        PYSPARK_PYTHON="./environment/bin/python",
    )
    assert ran.released == [["berlin", 2]]
    assert all(each.startswith(str(tmp_path / "here")) for each in ran.driver)
    assert all(each.startswith(str(spark_home / "work")) and "/environment/" in each for each in ran.task)


def test_the_wheel_as_a_zip_goes_with_py_files(
    wheel: Path, libraries: Environment, spark_home: Path, tmp_path: Path
) -> None:
    package = tmp_path / "substream_tracker.zip"
    shutil.copy(wheel, package)
    ran = submit(spark_home, tmp_path, "--py-files", str(package), PYSPARK_PYTHON=str(libraries.python))
    assert ran.released == [["berlin", 2]]
    assert all(package.name in file for _, file in (ran.driver, ran.task))


def test_executors_need_no_package_where_the_driver_counts(
    installed: Environment, libraries: Environment, spark_home: Path, tmp_path: Path
) -> None:
    pythons = {"PYSPARK_DRIVER_PYTHON": str(installed.python), "PYSPARK_PYTHON": str(libraries.python)}
    ran = submit(spark_home, tmp_path, **pythons)
    assert ran.released == [["berlin", 2]]
    assert ran.task == [str(libraries.python), ""]


class InstalledServer(ConnectServer):
    """A server of Spark Connect whose processes of Python find what is installed for them, and nothing else."""

    def __init__(self, directory: Path, python: Path) -> None:
        super().__init__(directory)
        self._python = python

    def _launch(self, command: list[str], **options: Any) -> None:
        options["env"] = {**environment(), "SPARK_HOME": str(SPARK), "PYSPARK_PYTHON": str(self._python)}
        super()._launch(command, **options)


@pytest.fixture
def tracker(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, "memory")
    yield server
    server.stop()


def test_a_connect_server_runs_the_package_that_it_has(installed: Environment, tracker: Server, tmp_path: Path) -> None:
    with InstalledServer(tmp_path, installed.python) as server:
        words = [str(installed.python), str(PROGRAM), str(tmp_path), server.url, tracker.address]
        assert run(words, tmp_path).released == [["berlin", 2]]


@pytest.fixture(scope="module")
def client(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with `pyspark-client` for `pyspark`: it has no py4j, and no class of Spark's JVM."""
    home, sources = tmp_path_factory.mktemp("client"), tmp_path_factory.mktemp("sources")
    release = pyspark.__version__.rpartition(".")[0]
    download = ("-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(sources), f"pyspark-client~={release}.0")
    done = subprocess.run([sys.executable, *download], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pyspark-client cannot be downloaded: {done.stderr[-500:]}")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    [packages] = home.glob("lib/*/site-packages")
    with tarfile.open(next(sources.glob("*.tar.gz"))) as archive:
        archive.extractall(sources, filter="data")
    shutil.move(next(sources.glob("*/pyspark")), packages)
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if not each.name.startswith(("pyspark", "py4j", "substream_tracker", "__editable__")) and each.suffix != ".pth":
            (packages / each.name).symlink_to(each)
    pip = ("-m", "pip", "--python", str(home / "bin" / "python"), "install", "--quiet", "--no-index", "--no-deps")
    tools().run(*pip, "--only-binary", ":all:", str(wheel))
    return Environment(home)


def test_the_client_alone_runs_a_query_over_connect(
    client: Environment, installed: Environment, tracker: Server, tmp_path: Path
) -> None:
    client.run("-c", "import py4j", directory=tmp_path, status=1)
    with InstalledServer(tmp_path, installed.python) as server:
        words = [str(client.python), str(PROGRAM), str(tmp_path), server.url, tracker.address]
        assert run(words, tmp_path).released == [["berlin", 2]]


def test_an_artifact_of_a_session_reaches_tasks_and_no_query(
    wheel: Path, installed: Environment, libraries: Environment, tracker: Server, tmp_path: Path
) -> None:
    """If the second is so no more, docs/howto/install.md can be shorter."""
    shutil.copy(wheel, tmp_path / "artifact.zip")
    with InstalledServer(tmp_path, libraries.python) as server:
        words = [str(installed.python), str(PROGRAM), str(tmp_path), server.url, tracker.address]
        done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "artifact.zip/spark_client" in json.loads(done.stdout.splitlines()[0])["task"][1]
    assert "No module named 'spark_client'" in done.stderr
