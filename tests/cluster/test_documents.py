"""What the documents tell a reader to type works as it is written, on real processes.

Every block of README.md, docs/COMMANDS.md and docs/CLIENTS.md runs, in their order, from a checkout
and from the wheel, in a folder with spaces in its name; what is not run has its reason below. Only
the port of the cluster is another one, since several tests run on a machine.
"""

import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy
import pytest

from icecore.dev import LocalCluster

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "docs/COMMANDS.md", "docs/CLIENTS.md")
NOT_RUN = (
    ("mermaid", "a drawing"),
    ("make demo", "another test runs the demo, and `make test` runs this one"),
    ("make setup", "the fixtures have installed it and started a cluster"),
    ("$ grpcurl", "no program of ours; test_plain_grpc.py makes these calls"),
    ("icecore-coordinator --data /var/lib", "several machines"),
    ("[profiles.local]", "a file; the unit tests of profiles read one"),
)
"""How a block begins, or what is in it; and why it is not run here."""
SETUP = {
    "README.md": ("icecore dev sample --count 2000 > flights.ndjson",),
    "docs/COMMANDS.md": (
        "icecore topic create copy --partitions 6",
        "icecore topic create weather",
    ),
    "docs/CLIENTS.md": (),
}
NOT_TYPED = (". .venv/bin/activate", "icecore dev sample > flights.ndjson")
"""The first is what the fixtures do; the second is in SETUP, with fewer records."""
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOLLOW_S = 4
"""How long a command that follows a topic is left alone."""


@dataclass(frozen=True)
class Place:
    """Where a reader sits: a folder, and what is on the path there."""

    folder: Path
    environment: dict[str, str]
    bootstrap: str

    def type(self, line: str) -> None:
        """Run one line of a shell; it must end well."""
        is_endless = " --follow" in line
        command = f"timeout {FOLLOW_S} {line}; test $? = 124" if is_endless else line
        self._run(["bash", "-o", "pipefail", "-c", command], line)

    def python(self, text: str) -> None:
        """Run a program."""
        self._run(["python", "-c", text.replace("127.0.0.1:7400", self.bootstrap)], text)

    def _run(self, command: list[str], shown: str) -> None:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == 0, f"{shown}\n{done.stdout[-500:]}{done.stderr}"
        assert "Traceback" not in done.stderr, shown


def _scripts(folder: Path, python: Path, package_paths: str) -> dict[str, str]:
    """An environment whose ``icecore`` and ``python`` are those of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = {"icecore": f'exec "{python}" -m icecore.cli "$@"', "python": f'exec "{python}" "$@"'}
    for name, line in lines.items():
        script = folder / name
        script.unlink(missing_ok=True)
        script.write_text(f"#!/bin/sh\n{line}\n")
        script.chmod(0o755)
    found = {key: value for key, value in os.environ.items() if not key.startswith("ICECORE_")}
    path = f"{folder}:{found['PATH']}"
    return {**found, "PATH": path, "PYTHONPATH": package_paths, "PYTHONSAFEPATH": "1"}


def _checkout(folder: Path) -> dict[str, str]:
    roots = (ROOT / each for each in ("", "replication", "node", "coordinator"))
    return _scripts(folder / "bin", Path(sys.executable), ":".join(map(str, roots)))


def _wheel(folder: Path) -> dict[str, str]:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
    subprocess.run([*command, str(folder)], cwd=ROOT, check=True, capture_output=True)
    venv.create(folder / "env", with_pip=False, symlinks=True)
    packages = next((folder / "env/lib").glob("python*/site-packages"))
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(packages)
    (packages / "dependencies.pth").write_text(f"{Path(numpy.__file__).parents[1]}\n")
    return _scripts(folder / "bin", folder / "env/bin/python", "")


@pytest.fixture(scope="module", params=[_checkout, _wheel], ids=["checkout", "wheel"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("a path with spaces")
    environment = request.param(folder)
    with LocalCluster(folder / "data", nodes=3) as cluster:
        environment["ICECORE_BOOTSTRAP"] = cluster.bootstrap
        yield Place(folder, environment, cluster.bootstrap)


def blocks(document: str) -> list[tuple[str, str]]:
    """Language and text of those that are run."""
    found = [(each[1], each[2]) for each in BLOCK.finditer((ROOT / document).read_text())]
    reasons = [start for start, _ in NOT_RUN]
    return [
        (language, text)
        for language, text in found
        if language not in reasons and not any(start in text for start in reasons)
    ]


def test_documents_run_as_they_are_written(place: Place) -> None:
    for document in DOCUMENTS:
        for line in SETUP[document]:
            place.type(line)
        for language, text in blocks(document):
            if language == "python":
                place.python(text)
                continue
            for line in text.replace("\\\n", " ").splitlines():
                if line and line not in NOT_TYPED:
                    place.type(line)


def test_reasons_are_needed_and_most_blocks_run() -> None:
    text = "".join((ROOT / document).read_text() for document in DOCUMENTS)
    assert not [start for start, _ in NOT_RUN if start not in text]
    assert sum(len(blocks(document)) for document in DOCUMENTS) >= 8
