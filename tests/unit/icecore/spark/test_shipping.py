"""A Python without icecore unpacks the objects that Spark sends to executors."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle
from pyspark.sql.types import StructType

from icecore.spark import sink
from icecore.spark.columns import SCHEMA
from icecore.spark.options import read_options, write_options
from icecore.spark.sink import BatchWriter, StreamWriter
from icecore.spark.source import IcecoreDataSource, PushingReader, TopicBatchReader
from icecore.spark.stream import StreamReader

WHERE = {"topic": "t", "bootstrap": "127.0.0.1:1"}
UNPACK = """
import importlib.abc, pickle, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] == "icecore":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
pickle.load(open(sys.argv[1], "rb"))
"""
VALUE = StructType([SCHEMA["value"]])


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver looks for the topic of a write."""

    async def find(*_: object) -> bytes:
        return b"t" * 16

    monkeypatch.setattr(sink, "find_topic", find)


def shipped() -> list[object]:
    batch, stream = (read_options(WHERE, is_stream=each) for each in (False, True))
    writing = write_options(WHERE, is_stream=False)
    return [
        IcecoreDataSource(WHERE),
        TopicBatchReader(batch, SCHEMA),
        PushingReader(batch, SCHEMA),
        StreamReader(stream, SCHEMA),
        BatchWriter(writing, VALUE),
        StreamWriter(writing, VALUE),
    ]


@pytest.mark.parametrize("number", [0, 1, 4])
def test_executor_without_the_package_says_what_to_ship(number: int, tmp_path: Path) -> None:
    path = tmp_path / "shipped"
    path.write_bytes(cloudpickle.dumps(shipped()[number]))
    found = subprocess.run(
        [sys.executable, "-c", UNPACK, str(path)], capture_output=True, text=True
    )
    assert found.returncode == 1
    assert "this Spark executor can't import icecore" in found.stderr
    assert "spark.archives" in found.stderr


def test_everything_arrives_as_it_was() -> None:
    for each in shipped():
        again = cloudpickle.loads(cloudpickle.dumps(each))
        assert type(again) is type(each)
        ours = {name: value for name, value in vars(each).items() if name != "_options"}
        theirs = {name: value for name, value in vars(again).items() if name != "_options"}
        assert theirs.keys() == ours.keys()


def test_a_write_keeps_its_id_on_the_way() -> None:
    """Else each task would be a write of its own, and its second attempt another one."""
    writer = BatchWriter(write_options(WHERE, is_stream=False), VALUE)
    again = cloudpickle.loads(cloudpickle.dumps(writer))
    assert (again._id, again._attempt) == (writer._id, writer._attempt)
    assert again._attempt.topic_id == b"t" * 16
    assert BatchWriter(write_options(WHERE, is_stream=False), VALUE)._id != writer._id
