"""The data source ``icecore`` as Spark calls it: which class reads or writes what.

Spark makes these objects in processes of its own, in the driver and on executors, and sends them
from one to the other. They hold plain values only; clients are made where they are used.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from icecore.blocking import Admin
from icecore.spark.columns import check_schema, pruned
from icecore.spark.filters import Pushed, pushed
from icecore.spark.options import ReadOptions, read_options, write_options
from icecore.spark.plan import Snapshot, ranges_within, spanned, within
from icecore.spark.ranges import RangePartition, read_range
from icecore.spark.reading import RangeSource
from icecore.spark.shipping import shipped
from icecore.spark.snapshot import (
    ADMIN_TIMEOUT_S,
    check_topic,
    held_snapshot,
    offsets_of,
    offsets_since,
    take_snapshot,
)
from icecore.spark.stream import StreamReader


class IcecoreDataSource(DataSource):
    """``spark.read.format("icecore")`` and its like. Options are in docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "icecore"

    def schema(self) -> StructType:
        """The columns that are read unless ``.schema(...)`` says so."""
        names = {name.lower(): text for name, text in self.options.items()}
        return pruned(read_options(_only(names, "columns"), is_stream=False).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For a batch query."""
        options = read_options(self.options, is_stream=False)
        check_schema(schema)
        return (PushingReader if options.filter_pushdown else TopicBatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For a streaming query."""
        check_schema(schema)
        return StreamReader(read_options(self.options, is_stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For a batch."""
        from icecore.spark.sink import BatchWriter  # it imports more than any process that reads

        return BatchWriter(write_options(self.options, is_stream=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """For each micro-batch of a streaming query."""
        from icecore.spark.sink import StreamWriter

        return StreamWriter(write_options(self.options, is_stream=True), schema, overwrite)

    def __reduce__(self) -> tuple[Any, ...]:
        return shipped(self, dict(self.options))


class TopicBatchReader(DataSourceReader):
    """Reads what a topic holds when the query is planned.

    Args:
        options: Of the read.
        schema: The columns that are wanted.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pushed = Pushed()

    def partitions(self) -> list[InputPartition]:
        """Take the snapshot, and split it.

        Raises:
            ConfigurationError, OffsetOutOfRangeError: Options do not fit what there is.
            IcecoreError: The topic is unknown, or nobody answered in time.
        """
        options, keys = self._options, self._pushed.wanted_keys() or self._options.keys
        if options.keys and self._pushed.keys is not None:
            keys = tuple(key for key in options.keys if key in self._pushed.keys)
            if not keys:
                return []
        if self._pushed.keys is not None and not self._pushed.keys:
            return []
        with Admin(options.bootstrap, timeout_s=ADMIN_TIMEOUT_S) as admin:
            snapshot = self._snapshot(admin)
            starts, ends = self._bounds(admin, snapshot)
        source = RangeSource(
            options.bootstrap,
            options.topic,
            snapshot.topic_id,
            keys,
            options.tags,
            options.fail_on_data_loss,
        )
        spans = within(snapshot, options.offset_ranges, starts, ends)
        planned = ranges_within(snapshot, spans, options.min_partitions)
        return [RangePartition(source, each) for each in planned]

    def _snapshot(self, admin: Admin) -> Snapshot:
        """Return the snapshot to read; ranges that were planned before are taken as they are.
        Readers find out whether their records are still there."""
        options = self._options
        if options.offset_ranges is not None:
            return Snapshot(options.topic, options.topic_id, spanned(options.offset_ranges))
        if options.as_of is not None:
            return held_snapshot(admin, options.topic, options.as_of)
        snapshot = take_snapshot(admin, options.topic)
        check_topic(options, snapshot)
        return snapshot

    def _bounds(self, admin: Admin, snapshot: Snapshot) -> tuple[dict[int, int], dict[int, int]]:
        """From where to where each partition is read: what options and filters leave of it."""
        least = self._pushed
        starts = offsets_of(admin, self._options, snapshot, "starting")
        ends = offsets_of(admin, self._options, snapshot, "ending")
        if least.from_append_ms is not None:
            found = offsets_since(admin, snapshot, least.from_append_ms)
            starts = {number: max(start, found[number]) for number, start in starts.items()}
        if least.to_append_ms is not None:
            found = offsets_since(admin, snapshot, least.to_append_ms)
            ends = {number: min(end, found[number]) for number, end in ends.items()}
        for number in starts:
            starts[number] = max(starts[number], least.from_offset)
            ends[number] = min(ends[number], least.to_offset)
            if least.partitions is not None and number not in least.partitions:
                ends[number] = starts[number]
        return starts, ends

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        if not isinstance(partition, RangePartition):
            return iter(())  # what Spark makes of no partitions at all
        return read_range(partition.source, partition.wanted, self._schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return shipped(self, self._options, self._schema)


class PushingReader(TopicBatchReader):
    """The same, told by Spark what the query filters by; Spark must be set to do so."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Read less where filters allow it. Spark still checks all of them."""
        self._pushed = pushed(filters)
        return filters


def _only(names: dict[str, str], wanted: str) -> dict[str, str]:
    """Options that say where, and one more: a write has no schema to be asked for."""
    kept = {"topic": "-", "bootstrap": "-"}
    return kept | {name: text for name, text in names.items() if name == wanted}
