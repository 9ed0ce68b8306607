"""Nothing is left out in silence: a run ends with the reasons and what brings the tests."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import left_out

ROOT = Path(__file__).parents[2]
CONFTEST = (ROOT / "tests" / "conftest.py").read_text()
TESTS = """
import pytest
from tests.support import left_out

@pytest.mark.skipif(True, reason=left_out.reason("MinIO", "make setup-minio"))
@pytest.mark.parametrize("number", range(3))
def test_by_mark(number): pass

def test_by_call(): pytest.skip("mounting a tmpfs needs root")

def test_that_runs(): pass
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_the_last_lines_say_what_was_left_out(workers: list[str], tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    options = ["-q", "-ra", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", *options, *workers, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    *_, first, second, counts = done.stdout.splitlines()
    assert first == "left out: 3 tests of MinIO: make setup-minio brings it"
    assert second == "left out: 1 test: mounting a tmpfs needs root"
    assert counts.startswith("1 passed, 4 skipped")


def test_a_library_that_is_missing_is_named_with_what_brings_it() -> None:
    missing = "could not import 'pyspark': No module named 'pyspark'"
    assert left_out.lines([missing, "no such disk", missing]) == [
        "2 tests of pyspark: make setup-spark brings it",
        "1 test: no such disk",
    ]
    other = "could not import 'something': No module named 'something'"
    assert left_out.lines([other]) == [f"1 test: {other}"]
