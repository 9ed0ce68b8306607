"""Each Python process of Spark imports this package anew, so that import is kept short."""

import subprocess
import sys

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pandas")

FINDS = """
import pyspark_icecore
pyspark_icecore.DefaultSource({"topic": "t", "bootstrap": "127.0.0.1:1"}).schema()
"""
PLANS = "import icecore.spark.batch_plan"
READS = """
import pyarrow as pa
from icecore.spark.batches import BatchMaker
from icecore.spark.columns import pruned
from icecore.spark.objects.files import read_files
from icecore.spark.ranges import read_part
made = BatchMaker(pruned(["topic", "partition", "offset"]), "t", 7)
offsets = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(bytes(8))])
rows = pa.RecordBatch.from_arrays([offsets], ["offset"])
assert made.make([rows]).to_pylist() == [{"topic": "t", "partition": 7, "offset": 0}]
"""
CHECK = "\nimport sys\nsys.exit(', '.join(set(sys.argv[1:]) & sys.modules.keys()) or 0)"
ALWAYS = ("pandas", "icecore.spark.sink", "icecore.spark.sessions", "icecore.client.lookup.lookup")
NETWORK = ("grpc", "icecore.client.admin.admin", "icecore.client.consume.consumer")


@pytest.mark.parametrize(
    ("does", "without"),
    [
        (FINDS, (*ALWAYS, *NETWORK, "pyarrow", "numpy", "icecore.codec.batch")),
        (PLANS, (*ALWAYS, "icecore.client.produce.producer", "icecore.client.consume.consumer")),
        (READS, (*ALWAYS, *NETWORK, "pyarrow.compute", "icecore.codec.batch")),
    ],
)
def test_processes_import_what_they_use(does: str, without: tuple[str, ...]) -> None:
    """pandas alone takes as long as all of the rest."""
    command = [sys.executable, "-c", does + CHECK, *without]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
