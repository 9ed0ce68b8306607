"""Spark without Java is told how to get it, before Spark says something else."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from icecore.errors import ConfigurationError
from icecore.spark.sessions import check_java


def test_no_java(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="apt-get install openjdk-17"):
        check_java({"PATH": str(tmp_path)})
    with pytest.raises(ConfigurationError, match="where there is no bin/java"):
        check_java({"PATH": "/usr/bin", "JAVA_HOME": str(tmp_path)})


def test_java_by_either_way(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    check_java({"PATH": str(java.parent)})
    check_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
