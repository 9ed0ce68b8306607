"""Every command that the documents tell a reader to type works as written, on real processes.

Every block of the documents below runs, in their order, from the wheel, beside its `icecore dev`,
in a folder with spaces in its name. What is not run has its reason. Only the port of the cluster is
another one, since several tests run on a machine.

``ICECORE_DOCUMENTS_PYTHON=/path/to/python`` runs all of it with another interpreter, which has the
extras ``server``, ``arrow`` and ``tier``.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from icecore.dev import METRICS_PORT_OFFSET
from tests.support.ports import free_port_block

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("ICECORE_DOCUMENTS_PYTHON") or sys.executable)
NODES = 3
START_S = 60
DOCUMENTS = (
    "docs/start.md",  # ends with the topic deleted, and the next one makes it again
    "README.md",
    "docs/reference/commands-contract.md",
    "docs/produce.md",
    "docs/consume.md",
    "docs/find.md",
    "docs/topics.md",
    "docs/tiering.md",
    "docs/spark.md",
    "docs/spark-jobs.md",
    "docs/operate/deploy.md",
    "docs/operate/monitor.md",
    "docs/operate/repair.md",
    "docs/operate/backup.md",
)
NOT_RUN = (
    ("make setup", "the fixtures have installed it and started a cluster"),
    ("$ grpcurl", "no program of ours; test_plain_grpc.py makes these calls"),
    ("icecore-coordinator --data /var/lib", "several machines"),
    ("[profiles.local]", "a file; the unit tests of profiles read one"),
    ("from deltalake import", "waits for a tiered segment; test_tiering.py reads such tables"),
    ("icecore tier verify", "a bucket; test_tiering.py proves one, and restores from it"),
    ("docker run", "a Docker daemon; tests/deploy/test_image.py runs such containers"),
    ("toml", "a file; the unit tests of settings read such files"),
    ("ini", "a unit of systemd"),
    ("icecore-node inspect", "of a stopped node; test_offline.py has one"),
    ("icecore segment recover-unclean", "gives up data; test_lossy.py does"),
    ("icecore cluster backup", "at places of a server; test_backup.py runs these commands"),
    ("icecore cluster restore", "of a store that is lost; test_backup.py does"),
    ("icecore node drain", "needs a fourth node; test_drain.py empties one"),
    ("icecore cluster adopt", "of a store that is lost; test_adopt.py runs it"),
    ("late.writeStream", "goes on where the block before it ends; test_cookbook.py runs both"),
    ("newest.select", "the same"),
    ("spark", "needs a JVM; tests/spark/test_cookbook.py and test_jobs.py run these"),
)
"""The start of a block, or some text in it, and the reason why it is not run here."""
SETUP = {
    "docs/start.md": ("icecore dev sample --count 2000 > flights.ndjson",),
    "docs/reference/commands-contract.md": (
        "icecore topic create copy --partitions 6",
        "icecore topic create weather",
    ),
}
NOT_TYPED = (". .venv/bin/activate", "icecore dev sample > flights.ndjson")
"""The first is what the fixtures do; the second is in SETUP, with fewer records."""
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"[|<>$`;&~]")
"""In a line that needs a shell; others go to the typist as words."""
FOLLOW_S = 1.5
"""Seconds that a command which follows a topic is left alone."""


@dataclass(frozen=True)
class Place:
    """A reader's workplace: a folder, the programs on its path, and the process that types."""

    folder: Path
    environment: dict[str, str]
    bootstrap: str
    typist: "subprocess.Popen[str]"

    def type(self, line: str) -> None:
        """Run one line of a shell; it must end well, by Ctrl-C where it has no end."""
        if not SHELL.search(line):
            name, *words = shlex.split(line)
            assert name == "icecore", line
            self._ask(line, words=words, stop_s=FOLLOW_S if "--follow" in words else 0)
            return
        assert "--follow" not in line
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-500:]}{done.stderr}"
        assert "Traceback" not in done.stderr, line

    def python(self, text: str) -> None:
        """Run a program."""
        self._ask(text, program=text.replace("127.0.0.1:7400", self.bootstrap))

    def _ask(
        self, shown: str, *, words: Sequence[str] = (), program: str = "", stop_s: float = 0
    ) -> None:
        printed = self.folder / "printed"
        asked = {"words": words, "program": program, "stop_s": stop_s, "printed": str(printed)}
        assert self.typist.stdin is not None and self.typist.stdout is not None
        self.typist.stdin.write(json.dumps(asked) + "\n")
        self.typist.stdin.flush()
        status = self.typist.stdout.readline().strip()
        said = printed.read_text()
        assert status == "0", f"{shown}\n{said[-2000:]}"
        assert "Traceback" not in said, shown


def _scripts(folder: Path, python: Path) -> dict[str, str]:
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
    return {**found, "PATH": path, "PYTHONPATH": "", "PYTHONSAFEPATH": "1"}


def _wheel(folder: Path) -> dict[str, str]:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
    subprocess.run([*command, str(folder)], cwd=ROOT, check=True, capture_output=True)
    subprocess.run([str(PYTHON), "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    packages = next((folder / "env/lib").glob("python*/site-packages"))
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(packages)
    where = "import numpy, pathlib; print(pathlib.Path(numpy.__file__).parents[1])"
    found = subprocess.run([str(PYTHON), "-c", where], check=True, capture_output=True, text=True)
    (packages / "dependencies.pth").write_text(found.stdout)
    return _scripts(folder / "bin", folder / "env/bin/python")


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("a path with spaces")
    environment = _wheel(folder)
    numbers = range(NODES + 1)
    port = free_port_block([*numbers, *(METRICS_PORT_OFFSET + each for each in numbers)])
    log = folder / "dev.log"
    with log.open("w") as said:
        dev = subprocess.Popen(
            [folder / "bin" / "icecore", "dev", "--port", str(port)],
            cwd=folder,
            env=environment,
            stdout=said,
            stderr=said,
        )
    try:
        _wait_ready(dev, log)
        environment["ICECORE_BOOTSTRAP"] = bootstrap = f"127.0.0.1:{port}"
        with subprocess.Popen(
            [folder / "bin" / "python", ROOT / "tests/support/typist.py"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as typist:  # ends with its stdin
            assert typist.stdout is not None and typist.stdout.readline() == "ready\n"
            yield Place(folder, environment, bootstrap, typist)
    finally:
        dev.send_signal(signal.SIGINT)
        dev.wait(START_S)


def _wait_ready(dev: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_S
    while "ready; stop with Ctrl-C" not in log.read_text():
        assert dev.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def blocks(document: str) -> list[tuple[str, str]]:
    """Language and text of those that are run."""
    found = [(each[1], each[2]) for each in BLOCK.finditer((ROOT / document).read_text())]
    reasons = [start for start, _ in NOT_RUN]
    return [
        (language, text)
        for language, text in found
        if language not in reasons and not any(start in text for start in reasons)
    ]


@pytest.mark.timeout(400)
def test_documents_run_as_they_are_written(place: Place) -> None:
    for document in DOCUMENTS:
        for line in SETUP.get(document, ()):
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
    assert sum(len(blocks(document)) for document in DOCUMENTS) >= 16
