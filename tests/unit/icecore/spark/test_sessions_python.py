"""Spark's Python processes import the pyspark that is installed, and not the archive within it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from icecore.spark.sessions import python_of

SHOW = "import os; print(os.environ['PYTHONPATH'])"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    folder = tmp_path / "it's [here]" / "pyspark"
    (folder / "python" / "lib").mkdir(parents=True)
    return folder


def path_of(python: str, *given: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": ":".join(given)}
    said = subprocess.run(
        [python, "-c", SHOW], env=environment, stdout=subprocess.PIPE, check=True, text=True
    )
    return said.stdout.removesuffix("\n").split(":")


def test_the_archive_of_the_installed_one_is_left_out(installed: Path) -> None:
    lib = installed / "python" / "lib"
    mine = [f"{lib}/pyspark.zip", f"{lib}/py4j-0.10-src.zip"]
    others = ["/opt/spark/python/lib/pyspark.zip", "/a b/*", str(lib / "more"), "/$HOME"]
    for _ in range(2):  # the second time it is there
        python = python_of("local[2]", installed)
    assert path_of(python, *mine, *others) == others
    assert path_of(python, *mine) == [""]
    assert path_of(python, "") == [""]


def test_elsewhere_it_is_this_interpreter(installed: Path) -> None:
    assert python_of("spark://host:7077", installed) == sys.executable
    assert python_of(None, installed) == sys.executable
    assert python_of("local", installed.parent) == sys.executable
