"""The streaming reader: which offsets the next micro-batch has, and from which it began.

Spark writes offsets to the checkpoint before it reads them, and reads them again after a crash. So
the tasks of a micro-batch follow from its two offsets alone, whatever is sealed or moved meanwhile.
Offsets name the topic by its id: a topic made again, or another one, is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from icecore.blocking import Admin
from icecore.errors import ConfigurationError, OffsetOutOfRangeError, TopicRecreatedError
from icecore.spark.admission import Limits, admitted
from icecore.spark.options import ReadOptions
from icecore.spark.plan import PartitionSnapshot, Snapshot, ranges
from icecore.spark.ranges import RangePartition, read_range
from icecore.spark.reading import RangeSource
from icecore.spark.shipping import shipped
from icecore.spark.snapshot import ADMIN_TIMEOUT_S, offsets_of, take_snapshot

_VERSION: Final = 1
_NO_MORE_ROWS: Final = (1 << 63) - 1


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in the driver, and reads them on executors.

    Args:
        options: Of the read.
        schema: The columns that are wanted.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._initial: dict[str, Any] | None = None
        self._target: dict[int, int] | None = None
        self._planned: dict[int, int] = {}
        """End of the last micro-batch, by partition."""
        self._limits = Limits(
            options.max_offsets_per_trigger,
            options.max_bytes_per_trigger,
            options.max_files_per_trigger,
        )
        self._admin: Admin | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return shipped(self, self._options, self._schema)

    # --- offsets --------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query; Spark asks twice and gets the same answer."""
        if self._initial is None:
            snapshot = self._snapshot()
            starts = offsets_of(self._client(), self._options, snapshot, "starting")
            self._initial = _offset(snapshot, starts, self._options.min_partitions)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch, or none. Spark knows one limit at a time; the options
        say which there are."""
        return ReadMaxRows(_NO_MORE_ROWS) if self._limits != Limits() else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Restrict this run to the records that are there now."""
        snapshot = self._snapshot()
        self._target = {p: each.high_watermark for p, each in snapshot.partitions.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch.

        Raises:
            TopicRecreatedError: The topic is not the one that the checkpoint is of.
            OffsetOutOfRangeError: Records that were not read yet are gone, and that is an error.
            IcecoreError: The topic was deleted, or nobody answered in time.
        """
        is_limited = not isinstance(limit, ReadAllAvailable)
        snapshot = self._snapshot(with_segments=is_limited and self._limits.look_at_segments)
        known = self._known(start, snapshot)
        self._check_loss(known, snapshot)
        starts = {
            number: min(known.get(number, 0), each.high_watermark)  # it may have been more once
            for number, each in snapshot.partitions.items()
        }
        ends = {
            number: max(starts[number], self._end(number, each))
            for number, each in snapshot.partitions.items()
        }
        if is_limited:
            ends = admitted(snapshot, starts, ends, self._limits)
        self._planned = ends
        following = {p: end for p, end in ends.items() if p in known or end}
        if following == known:
            return start  # with another text Spark would begin a micro-batch
        chosen = _offset(snapshot, following, self._options.min_partitions)
        return chosen | {"left_out": _left_out(snapshot, starts, ends)}

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the current end for the query's progress, with the query's lag behind it in
        records."""
        snapshot = self._snapshot()
        ends = {number: each.high_watermark for number, each in snapshot.partitions.items()}
        lag = sum(
            each.records(self._planned.get(number, 0), each.high_watermark)
            for number, each in snapshot.partitions.items()
        )
        return {**_offset(snapshot, ends, self._options.min_partitions), "lag": lag}

    def _end(self, number: int, partition: PartitionSnapshot) -> int:
        if self._target is None:
            return partition.high_watermark
        return min(self._target.get(number, 0), partition.high_watermark)

    def _known(self, start: Mapping[str, Any], snapshot: Snapshot) -> dict[int, int]:
        """Return the next offset of each partition in the checkpoint; partitions added since are
        left out."""
        known = _positions(start, self._options.topic)
        if start["topic_id"] != snapshot.topic_id.hex():
            raise TopicRecreatedError(
                f"the checkpoint is of a topic {start['topic']} with the id {start['topic_id']}; "
                f"{snapshot.topic} has the id {snapshot.topic_id.hex()}: it was made again, or is "
                "another one. Begin with a new checkpoint"
            )
        gone = known.keys() - snapshot.partitions.keys()
        if gone:
            raise ConfigurationError(f"the checkpoint has partitions that are not there: {gone}")
        return known

    def _check_loss(self, starts: Mapping[int, int], snapshot: Snapshot) -> None:
        if not self._options.fail_on_data_loss:
            return
        for number, start in starts.items():
            first = snapshot.partitions[number].log_start_offset
            end = snapshot.partitions[number].high_watermark
            if start > end:
                raise OffsetOutOfRangeError(
                    f"{snapshot.topic}/{number} ends at offset {end}, and the query has read up to "
                    f"{start}: records were lost. Begin with a "
                    "new checkpoint; with failOnDataLoss=false the query goes on at the end",
                    high_watermark=end,
                )
            if start < first:
                raise OffsetOutOfRangeError(
                    f"{snapshot.topic}/{number}: offsets {start} to {first} were deleted before "
                    "they were read; with failOnDataLoss=false the query goes on behind them",
                    log_start_offset=first,
                )

    def _snapshot(self, *, with_segments: bool = False) -> Snapshot:
        return take_snapshot(self._client(), self._options.topic, with_segments=with_segments)

    def _client(self) -> Admin:
        """One for as long as the query runs: Spark keeps this object in a process of its own."""
        if self._admin is None:
            self._admin = Admin(self._options.bootstrap, timeout_s=ADMIN_TIMEOUT_S)
        return self._admin

    # --- tasks ----------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The same tasks whenever Spark asks for this micro-batch."""
        options = self._options
        before, ends = _positions(start, options.topic), _positions(end, options.topic)
        if start["topic_id"] != end["topic_id"]:
            raise TopicRecreatedError(f"the checkpoint has two topics named {options.topic}")
        starts = {number: before.get(number, 0) for number in ends}
        left_out = end.get("left_out", {})
        plain = {
            number: PartitionSnapshot(
                0, stop, (), tuple((low, high) for low, high in left_out.get(str(number), ()))
            )
            for number, stop in ends.items()
        }
        snapshot = Snapshot(options.topic, bytes.fromhex(end["topic_id"]), plain)
        least = int(end.get("min_partitions", options.min_partitions))
        planned = ranges(snapshot, starts, ends, least)
        return [
            RangePartition(self._source(snapshot, is_new=each.partition not in before), each)
            for each in planned
        ]

    def _source(self, snapshot: Snapshot, *, is_new: bool) -> RangeSource:
        """A partition that was added begins with the first record that is there, whichever."""
        options = self._options
        return RangeSource(
            options.bootstrap,
            options.topic,
            snapshot.topic_id,
            options.keys,
            options.tags,
            options.fail_on_data_loss and not is_new,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        if not isinstance(partition, RangePartition):
            return iter(())
        return read_range(partition.source, partition.wanted, self._schema)

    def stop(self) -> None:
        """Close the client."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None


def _offset(snapshot: Snapshot, offsets: Mapping[int, int], min_partitions: int) -> dict[str, Any]:
    """Return the offset that Spark keeps, as JSON. The option is of the micro-batch that ends
    there: one that is run again has the tasks that it had, whatever the query is started with."""
    return {
        "version": _VERSION,
        "topic": snapshot.topic,
        "topic_id": snapshot.topic_id.hex(),
        "partitions": {str(number): offset for number, offset in sorted(offsets.items())},
        "min_partitions": min_partitions,
    }


def _left_out(
    snapshot: Snapshot, starts: Mapping[int, int], ends: Mapping[int, int]
) -> dict[str, list[list[int]]]:
    """Offsets of a micro-batch that were never given out, as JSON. They are written down with it:
    once retention has taken them, nobody could say them again."""
    found = {
        str(number): [
            [low, high]
            for low, high in each.left_out
            if low < ends[number] and high > starts[number]
        ]
        for number, each in snapshot.partitions.items()
    }
    return {number: spans for number, spans in found.items() if spans}


def _positions(offset: Mapping[str, Any], topic: str) -> dict[int, int]:
    """Offsets by partition of what Spark has kept.

    Raises:
        ConfigurationError: It is not ours, or of another topic.
    """
    if offset.get("version") != _VERSION or "partitions" not in offset:
        raise ConfigurationError(f"the checkpoint is not of this version of icecore: {offset}")
    if offset["topic"] != topic:
        raise ConfigurationError(
            f"the checkpoint is of topic {offset['topic']}, the query reads {topic}: begin with a "
            "new checkpoint"
        )
    return {int(number): int(at) for number, at in offset["partitions"].items()}
