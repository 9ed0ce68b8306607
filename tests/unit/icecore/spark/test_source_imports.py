"""Each Python process of Spark imports this package anew, so that import is kept short."""

import subprocess
import sys

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pandas")

READS = """
import sys
import icecore.spark
found = {"pandas", "pyarrow.compute", "icecore.spark.sink"} & sys.modules.keys()
sys.exit(f"imported: {', '.join(sorted(found))}" if found else 0)
"""


def test_processes_that_read_import_no_pandas_and_no_sink() -> None:
    """pandas alone takes as long as all of the rest."""
    done = subprocess.run([sys.executable, "-c", READS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
