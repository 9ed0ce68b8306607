"""The tasks of a write, and the simulator that runs them, need no Spark."""

import subprocess
import sys

import pytest

WITHOUT = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import MODULE
"""


@pytest.mark.parametrize("module", ["icecore.spark.tasks.rows", "tests.simulation.run"])
def test_it_is_imported_where_spark_is_not_installed(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.replace("MODULE", module)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
