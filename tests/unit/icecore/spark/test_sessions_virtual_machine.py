"""Spark gets the packaged JVM where there is no other, without what that one can't do."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from icecore.spark.sessions import provide_java

SESSION = sys.modules["icecore.spark.sessions"]
"""The module: the package has a function of this name."""
SCRIPT = '#!/bin/sh\nfor each in "$@"; do echo "<$each>"; done\n'


def make_java(home: Path) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(SCRIPT)
    path.chmod(0o755)
    return path


def test_what_is_there_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_java(tmp_path)
    for environment in ({"PATH": str(path.parent)}, {"JAVA_HOME": "/elsewhere", "PATH": ""}):
        before = dict(environment)
        provide_java(environment, tmp_path / "unused")
        assert environment == before
    monkeypatch.setattr(SESSION, "_packaged", lambda: None)
    nothing = {"PATH": str(tmp_path / "empty")}
    provide_java(nothing)
    assert "JAVA_HOME" not in nothing


def test_the_packaged_one_is_not_told_of_a_module_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = tmp_path / "a folder" / "java-runtime"
    make_java(home)
    for _ in range(2):  # the second time it is there
        environment = {"PATH": str(tmp_path)}
        provide_java(environment, home)
    given = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "$HOME", "Main"]
    made = Path(environment["JAVA_HOME"]) / "bin" / "java"
    said = subprocess.run([made, *given], stdout=subprocess.PIPE, check=True, text=True).stdout
    assert said.splitlines() == ["<-cp>", "<a b>", "<$HOME>", "<Main>"]
