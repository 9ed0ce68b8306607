"""Cuts the rows of one task into batches of partitions, and appends them.

What record becomes of a row, in which partition and in which batch, follows from the rows and their
order alone, so that a task which is run again sends the same batches; ``appender.py`` says what
that is good for, and ``division.py`` what keeps tasks of another attempt from writing rows twice
that were divided otherwise then.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icecore.client.checks import LABEL_BYTES
from icecore.client.produce.limits import batch_bytes_cap, row_of, why_row_too_large
from icecore.codec.arrow import hash_of_keys
from icecore.codec.arrow_rows import checked, row_sizes
from icecore.codec.batch import BatchLimits
from icecore.errors import InvalidRequestError
from icecore.process.system import SystemClock
from icecore.rpc.ports import Clock
from icecore.spark.tasks.appender import Appender
from icecore.spark.tasks.division import TaskDivision
from icecore.spark.tasks.outbox import TaskOutbox

BATCH_BYTES: Final = 512 << 10
ROUND_BYTES: Final = 8 << 20
"""Rows are sent whenever so many have come."""
_RECORD_BYTES: Final = 24
_DEFAULT_LIMITS: Final = BatchLimits()


@dataclass(frozen=True)
class AppendedRows:
    """Result of one task."""

    records: int
    duplicates: int
    """Records among them that an earlier attempt had appended."""
    uncompared: int = 0
    """Records among the duplicates that leaders remember too little of to compare them."""


async def append_all(
    appender: Appender, rows: Iterator[pa.RecordBatch], task: int, division: TaskDivision | None
) -> AppendedRows:
    """Append the rows of a task, and close its appender.

    Args:
        appender: Not started yet.
        rows: All of them.
        task: Its number.
        division: What keeps rows from being written twice; None = nothing could write them before.

    Raises:
        SparkTaskChangedError: An earlier attempt has appended other rows.
        IcecoreError: They can't be appended.
    """
    try:
        await appender.start()
        outbox = TaskOutbox(appender, task, division)
        await outbox.start()
        cutter = Cutter(appender.partitions, task, appender.connection.clock, appender.limits)
        count = 0
        for batch in rows:
            count += batch.num_rows
            if batch.num_rows and cutter.add(batch) >= ROUND_BYTES:
                await outbox.send(cutter.take())
        await outbox.send(cutter.take(is_last=True))
        await outbox.finish()
        return AppendedRows(count, appender.duplicates, appender.uncompared)
    finally:
        await appender.close()


class Cutter:
    """Puts rows into batches of partitions: where one ends depends on the rows alone, and not on
    the batches in which Spark brings them.

    Args:
        partitions: Of the topic.
        task: Its number: rows without a key go to one partition.
        clock: Of the system unless given: rows without a time have its.
        limits: Of the topic.
    """

    def __init__(
        self,
        partitions: int,
        task: int,
        clock: Clock | None = None,
        limits: BatchLimits = _DEFAULT_LIMITS,
    ) -> None:
        self._limits, self._batch_bytes_cap = limits, batch_bytes_cap(limits)
        self._partitions = partitions
        self._clock = clock if clock is not None else SystemClock()
        self._keyless = task % partitions
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        self._bytes = 0

    def add(self, rows: pa.RecordBatch) -> int:
        """Take rows; how many bytes wait.

        Raises:
            InvalidRequestError: A partition does not exist, or a value must not be null.
            RecordTooLargeError: A row exceeds the limit of the topic.
        """
        partitions = self._partition_of(rows)
        kept = checked(rows, self._clock.now_ms())
        sizes = row_sizes(kept, LABEL_BYTES)
        error = why_row_too_large(self._limits, sizes, partial(row_of, kept))
        if error is not None:
            raise error
        for partition in np.unique(partitions).tolist():
            mine = kept.filter(pa.array(partitions == partition))
            self._waiting.setdefault(partition, []).append(mine)
        self._bytes += kept.nbytes
        return self._bytes

    def _partition_of(self, rows: pa.RecordBatch) -> Any:
        found = np.full(rows.num_rows, self._keyless, np.int64)
        if "key" in rows.schema.names:
            keys = rows.column("key").cast(pa.binary())
            hashed = (hash_of_keys(keys) >> np.uint64(32)) % np.uint64(self._partitions)
            found = np.where(pc.is_valid(keys).to_numpy(zero_copy_only=False), hashed, found)
        if "partition" in rows.schema.names:
            given = rows.column("partition").cast(pa.int64())
            asked = given.fill_null(-1).to_numpy(zero_copy_only=False)
            found = np.where(pc.is_valid(given).to_numpy(zero_copy_only=False), asked, found)
        wrong = found[(found < 0) | (found >= self._partitions)]
        if len(wrong):
            raise InvalidRequestError(
                f"column partition has {wrong[0]}; the topic has 0 to {self._partitions - 1}"
            )
        return found.astype(np.int64)

    def take(self, *, is_last: bool = False) -> dict[int, list[pa.RecordBatch]]:
        """Batches that are full, and with ``is_last`` what is left of them, by partition."""
        taken: dict[int, list[pa.RecordBatch]] = {}
        for partition, waiting in self._waiting.items():
            rows = waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            full, rest = _cut(rows, self._batch_bytes_cap)
            if is_last and rest.num_rows:
                full, rest = [*full, rest], rest.slice(rest.num_rows)
            taken[partition] = full
            self._waiting[partition] = [rest]
        self._bytes = 0
        return {partition: batches for partition, batches in taken.items() if batches}


def _cut(rows: pa.RecordBatch, cap_bytes: int) -> tuple[list[pa.RecordBatch], pa.RecordBatch]:
    """Whole batches from the front, and the rest: each ends with the row that fills it, or before
    that row when the topic would not take both."""
    ends = np.cumsum(row_sizes(rows) + _RECORD_BYTES)
    full: list[pa.RecordBatch] = []
    start, before = 0, 0
    while start < rows.num_rows:
        end = int(np.searchsorted(ends, before + min(BATCH_BYTES, cap_bytes))) + 1
        if end > rows.num_rows:
            break
        if end - start > 1 and ends[end - 1] - before > cap_bytes:
            end -= 1
        full.append(rows.slice(start, end - start))
        start, before = end, int(ends[end - 1])
    return full, rows.slice(start)
