"""Command lines of jobs: what is refused before Spark is started, and how that is said."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from icecore.errors import ConfigurationError
from icecore.spark.jobs.__main__ import run
from icecore.spark.jobs.arguments import parse, settings
from icecore.spark.runs.report import Report, json_schema

RUN = """
import runpy, sys
archive, script = sys.argv[1:]
sys.path.insert(0, archive)
sys.argv = [script, "schema"]
try:
    runpy.run_path(script, run_name="__main__")
finally:
    import icecore
    assert archive in icecore.__file__, icecore.__file__
"""
WHERE = ["t", "--bootstrap", "127.0.0.1:7400"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "JOB"),
        (["newest", *WHERE], "invalid choice"),
        (["latest", "t", "--to", "x"], "--bootstrap"),
        (["latest", *WHERE], "--to"),
        (["latest", *WHERE, "--to", "x", "--scheme", "y"], "unrecognized"),
        (["latest", *WHERE, "--to", "x", "--dry"], "unrecognized"),  # nothing is guessed
        (["export", *WHERE, "--to", "x", "--step-records", "0"], "no whole number above 0"),
        (["export", *WHERE, "--to", "x", "--step-records", "9" * 5000], "no whole number above 0"),
        (["export", *WHERE, "--to", "x", "--partition-by", "a,,b"], "no list of names"),
        (["export", *WHERE, "--to", "x", "--partition-by", "a,a"], "no list of names"),
        (["backfill", *WHERE, "--state", "x"], "--from"),
    ],
)
def test_bad_command_lines(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse(given)
    assert run(given) == 1
    caught = capsys.readouterr()
    assert said in caught.err
    assert not caught.out


def test_settings_of_spark() -> None:
    assert settings(["a.b=c=d", "e="]) == {"a.b": "c=d", "e": ""}
    for wrong in ("a.b", "=c"):
        with pytest.raises(ConfigurationError, match="NAME=VALUE"):
            settings([wrong])


def test_help_and_schema_need_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "icecore.spark.jobs", "export", "--help"]
    shown = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    for word in ("--dry-run", "--schema", "--partition-by", "--step-records", "--master"):
        assert word in shown
    assert run(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()


def test_the_package_runs_without_this_tree(tmp_path: Path) -> None:
    assert run(["package", str(tmp_path / "a")]) == 0
    assert run(["package", str(tmp_path / "b")]) == 0
    archive, script = tmp_path / "a" / "icecore-spark.zip", tmp_path / "a" / "icecore_jobs.py"
    assert archive.read_bytes() == (tmp_path / "b" / archive.name).read_bytes()
    shown = subprocess.run(
        [sys.executable, "-I", "-c", RUN, str(archive), str(script)],
        capture_output=True,
        check=True,
        text=True,
    )
    assert json.loads(shown.stdout) == json_schema()
    (tmp_path / "file").write_text("")
    assert run(["package", str(tmp_path / "file")]) == 1


def test_the_last_line_fits_its_schema() -> None:
    report = Report("latest", "t")
    report.metrics.end_offsets = {"0": 7}
    line, schema = json.loads(report.last_line()), json_schema()
    assert list(line) == schema["required"] == list(schema["properties"])
    kinds = {"string": str, "integer": int, "number": float, "object": dict}
    for name, value in line.items():
        wanted = schema["properties"][name]
        assert (
            value == wanted["const"]
            if "const" in wanted
            else isinstance(value, kinds[wanted["type"]])
        )
