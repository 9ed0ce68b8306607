"""A backfill whose topic got partitions meanwhile says so, and what to do."""

from argparse import Namespace
from pathlib import Path
from typing import Any, cast

import pytest

from icecore.spark.plan import PartitionSnapshot, Snapshot
from icecore.spark.runs.backfill import BackfillEngine, BackfillRun
from icecore.spark.runs.folder import JobFolder
from icecore.spark.runs.report import Report
from icecore.spark.tasks.identity import SparkTaskChangedError
from tests.unit.icecore.spark.runs.test_ledger import DiskFolder


class Engine:
    """A topic whose partitions are counted by hand, and that recognises no rows."""

    def __init__(self, path: Path) -> None:
        self.folder = cast(JobFolder, DiskFolder(path))
        self.partitions = 2
        self.added = 0

    def snapshot(self) -> Snapshot:
        spans = {number: PartitionSnapshot(0, 0, ()) for number in range(self.partitions)}
        return Snapshot("t", b"t" * 16, spans)

    def check(self) -> None:
        pass

    def append(self, *_: object) -> int:
        self.partitions += self.added
        raise SparkTaskChangedError("other rows")


@pytest.mark.parametrize("added", [0, 3])
def test_keys_that_have_moved_are_named(added: int, tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.added = added
    asked: Any = {"topic": "t", "source": "s", "format": "parquet", "key": "", "value": ""}
    asked |= {"timestamp": "", "tags": [], "order_by": [], "steps": 1, "tasks": 1}
    run = BackfillRun(
        cast(BackfillEngine, engine), Namespace(**asked, dry_run=False), Report("backfill", "t")
    )
    with pytest.raises(SparkTaskChangedError) as raised:
        run.perform()
    told = raised.value.message
    assert ("had 2 partitions when this backfill began and has 5" in told) == bool(added)
    assert ("a new topic with a new --state" in told) == bool(added)
    assert "other rows" in told
