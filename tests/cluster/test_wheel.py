"""What is installed from the wheel: four packages with our names, and a client that is light.

The wheel goes into an empty environment, whose working directory has folders and files of the names
that our packages had. Dependencies come from the environment of the tests by a path entry, which
carries no editable install.
"""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = {"icecore", "icecore_replication", "icecore_node", "icecore_coordinator"}
SERVER_ONLY = ("rocksdict", "prometheus_client", "grpc_health", "grpc_reflection")
CLUSTER = """
import sys
from icecore.blocking import Admin, Consumer, Producer
from icecore.dev import LocalCluster

with LocalCluster("data", nodes=1) as cluster:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("t", partitions=1, replication_factor=1)
    with Producer(cluster.bootstrap) as producer:
        producer.send("t", b"from a wheel").result()
    with Consumer(cluster.bootstrap, "t", start="earliest", stop_at_end=True) as consumer:
        print([record.value for record in consumer])
"""
CLIENT = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in {names!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import icecore, icecore.blocking, icecore.cli, icecore.dev
print(icecore.Producer, icecore.Consumer, icecore.Admin)
"""


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
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
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
    (points,) = [name for name in names if name.endswith("entry_points.txt")]
    with zipfile.ZipFile(wheel) as archive:
        assert "icecore-node = icecore_node.__main__:main" in archive.read(points).decode()


def test_records_go_through_an_installed_cluster(installed: Path) -> None:
    assert "[b'from a wheel']" in run(installed, "-c", CLUSTER)


@pytest.mark.parametrize("module", ["icecore.cli", "icecore_node", "icecore_coordinator"])
def test_commands_start(installed: Path, module: str) -> None:
    assert "--help" in run(installed, "-m", module, "--help")


def test_client_needs_nothing_of_a_server(installed: Path) -> None:
    names = (*SERVER_ONLY, *(OURS - {"icecore"}))
    assert "Producer" in run(installed, "-c", CLIENT.format(names=names))
