"""The wheel installs five packages with our names, and a client that is light.

The wheel goes into an empty environment, whose working directory has folders and files of the names
that our packages had. Dependencies come from the environment of the tests by a path entry, which
carries no editable install. A cluster from the wheel is what ``test_documents.py`` runs.
"""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).parents[2]
OURS = {"icecore", "icecore_replication", "icecore_node", "icecore_coordinator", "pyspark_icecore"}
SERVER_ONLY = ("rocksdict", "prometheus_client", "grpc_health", "grpc_reflection")
CLIENT = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in {names!r}:
            raise ModuleNotFoundError("No module named " + name, name=name)

sys.meta_path.insert(0, Missing())
import icecore, icecore.blocking, icecore.cli, icecore.dev, icecore.spark
print(icecore.Producer, icecore.Consumer, icecore.Admin)
{then}
"""
LIGHT = (
    *SERVER_ONLY,
    "uvloop",
    "typer",
    "rich",
    "pydantic",
    "pyarrow",
    "obstore",
    "deltalake",
    "pyspark",
)
"""Packages that a plain ``pip install icecore`` does not install."""
EXTRA_NEEDED = (
    ("icecore.cli.main()", "icecore: typer is not installed: pip install 'icecore[cli]'"),
    (
        "from icecore.process import programs; programs.node()",
        "icecore-node: uvloop is not installed: pip install 'icecore[server]'",
    ),
    (
        "from icecore.process import programs; programs.coordinator()",
        "icecore-coordinator: uvloop is not installed: pip install 'icecore[server]'",
    ),
    *(
        (f"import runpy; runpy.run_module({module!r}, run_name='__main__')", line)
        for module, line in (
            (
                "icecore_node",
                "icecore-node: uvloop is not installed: pip install 'icecore[server]'",
            ),
            (
                "icecore_coordinator",
                "icecore-coordinator: uvloop is not installed: pip install 'icecore[server]'",
            ),
            (
                "icecore.cli.server_settings",
                "icecore: pydantic is not installed: pip install 'icecore[server]'",
            ),
            (
                "icecore.spark.jobs",
                "icecore.spark.jobs: pyspark is not installed: pip install 'icecore[spark]'",
            ),
        )
    ),
    (
        "try: icecore.spark.read\nexcept ImportError as error: sys.exit(str(error))",
        "pyspark is not installed: pip install 'icecore[spark]'",
    ),
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
    subprocess.run([*command, str(folder)], cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of an environment with the wheel, beside things that have our old names."""
    folder = tmp_path_factory.mktemp("stranger")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    packages = next((folder / "env/lib").glob("python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "dependencies.pth").write_text(f"{Path(numpy.__file__).parents[1]}\n")
    for name in ("node", "coordinator", "replication", "storage"):
        (folder / "work" / name).mkdir(parents=True)
        for place in (folder / "work" / name / "__init__.py", folder / "work" / f"{name}.py"):
            place.write_text("raise SystemExit('code of the user ran')\n")
    return folder


def run(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder / "work")}
    done = subprocess.run(
        [str(folder / "env/bin/python"), *arguments],
        cwd=folder / "work",
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel_holds_our_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {each for each in tops if not each.endswith(".dist-info")} == OURS
    assert "icecore/py.typed" in names and "icecore/v1/data_pb2.pyi" in names
    assert "icecore/v1/proto/data.proto" in names
    (points,) = [name for name in names if name.endswith("entry_points.txt")]
    with zipfile.ZipFile(wheel) as archive:
        assert "icecore-node = icecore.process.programs:node" in archive.read(points).decode()


@pytest.mark.parametrize("module", ["icecore.cli", "icecore_node", "icecore_coordinator"])
def test_commands_start(installed: Path, module: str) -> None:
    assert "--help" in run(installed, "-m", module, "--help")


def test_client_needs_nothing_of_a_server(installed: Path) -> None:
    names = (*LIGHT, *(OURS - {"icecore"}))
    assert "Producer" in run(installed, "-c", CLIENT.format(names=names, then=""))


@pytest.mark.parametrize(("code", "line"), EXTRA_NEEDED)
def test_a_missing_extra_is_one_line_that_says_what_to_install(
    installed: Path, code: str, line: str
) -> None:
    done = subprocess.run(
        [str(installed / "env/bin/python"), "-c", CLIENT.format(names=LIGHT, then=code)],
        cwd=installed,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (1, line + "\n")


def test_sdist_can_build_test_and_run_the_demo(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory"]
    subprocess.run([*command, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = (each for each in tmp_path.iterdir() if each.is_dir())
    tracked = ["Makefile", "README.md", "docs/reference/formats.md", "examples/flights_demo.py"]
    if (ROOT / ".git").exists():  # else this is an sdist that was unpacked
        command = ["git", "ls-files"]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        tracked = listed.stdout.split()
    assert not [name for name in tracked if not (unpacked / name).exists()]
    wheel = tmp_path / "wheel"
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
    subprocess.run([*command, str(wheel)], cwd=unpacked, check=True, capture_output=True)
    (again,) = wheel.glob("*.whl")
    with zipfile.ZipFile(again) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("/METADATA"))
        metadata = archive.read(name).decode()
    assert "Description-Content-Type: text/markdown" in metadata
    assert "Provides-Extra: server" in metadata and "# icecore" in metadata
