"""The data source ``icecore`` as Spark calls it: which class reads or writes what.

Spark makes these objects in processes of its own, in the driver and on executors, and sends them
from one to the other. They hold plain values only; clients are made where they are used.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

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

from icecore.spark.columns import check_schema, pruned
from icecore.spark.options import ReadOptions, read_options, write_options
from icecore.spark.shipping import shipped

if TYPE_CHECKING:
    import pyarrow as pa

    from icecore.spark.filters import Pushed

# Spark starts a process each to look for this module, to make the source, to plan and to read, and
# each imports it anew. So what only one of them needs is imported where it is used.


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
        from icecore.spark.stream import StreamReader

        check_schema(schema)
        return StreamReader(read_options(self.options, is_stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For a batch."""
        from icecore.spark.sink import BatchWriter

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
        self._pushed: Pushed | None = None

    def partitions(self) -> list[InputPartition]:
        """Take the snapshot, split it, and say where each part of it is read.

        Raises:
            ConfigurationError, OffsetOutOfRangeError: Options do not fit what there is.
            IcecoreError: The topic is unknown, or nobody answered in time.
        """
        from icecore.spark.batch_plan import plan_tasks
        from icecore.spark.filters import Pushed

        return [*plan_tasks(self._options, self._pushed or Pushed())]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """On an executor."""
        from icecore.spark.ranges import RangePartition, read_part

        if not isinstance(partition, RangePartition):
            return iter(())  # what Spark makes of no partitions at all
        return read_part(partition, self._schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return shipped(self, self._options, self._schema)


class PushingReader(TopicBatchReader):
    """The same, told by Spark what the query filters by; Spark must be set to do so."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Read less where filters allow it. Spark still checks all of them."""
        from icecore.spark.filters import pushed

        self._pushed = pushed(filters)
        return filters


def _only(names: dict[str, str], wanted: str) -> dict[str, str]:
    """Options that say where, and one more: a write has no schema to be asked for."""
    kept = {"topic": "-", "bootstrap": "-"}
    return kept | {name: text for name, text in names.items() if name == wanted}
