"""Offsets that a job reads next: from where the last step ended to what there is now."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from icecore.errors import OffsetOutOfRangeError
from icecore.spark.admission import by_records
from icecore.spark.plan import Snapshot
from icecore.spark.runs.report import Metrics

Offsets = dict[str, int]
"""Offsets by partition, as they stand in JSON."""
NOTHING: Final[Offsets] = {}


def reached(done: Iterable[Mapping[str, Offsets]]) -> Offsets:
    """Return how far steps have come in each partition, also in those that a later step did not
    know: who said how many there are may have been behind.

    Args:
        done: Notes of the steps, in their order.
    """
    found: Offsets = {}
    for noted in done:
        found |= noted["end_offsets"]
    return found


def left(
    snapshot: Snapshot, before: Mapping[str, int], *, may_lose: bool
) -> tuple[Offsets, Offsets]:
    """From where to where a job that has come as far as ``before`` goes on.

    It never goes back. No offset is given out twice (R96), so what it has read further than a log
    goes was lost, or who said the end of the log is behind: what comes next is beyond it.

    Raises:
        OffsetOutOfRangeError: Records that it has not read are gone, or the log ends before what it
            has read, and ``may_lose`` is not set.
    """
    starts: Offsets = {}
    for number, partition in snapshot.partitions.items():
        first = partition.log_start_offset
        end = max(first, partition.high_watermark)
        start = before.get(str(number), first)
        if start > end and not may_lose:
            raise OffsetOutOfRangeError(
                f"{snapshot.topic}/{number} ends at offset {end}, and this job has read up to "
                f"{start}: records were lost. Give the job a new "
                "output; with --allow-data-loss it goes on behind them",
                high_watermark=end,
            )
        if start < first and not may_lose:
            raise OffsetOutOfRangeError(
                f"{snapshot.topic}/{number}: offsets {start} to {first} were deleted before this "
                "job read them; with --allow-data-loss it goes on behind them",
                log_start_offset=first,
            )
        starts[str(number)] = max(start, first)
    ends = {
        str(number): max(starts[str(number)], each.high_watermark)
        for number, each in snapshot.partitions.items()
    }
    return starts, ends


def cut(
    snapshot: Snapshot, starts: Offsets, ends: Offsets, records_max: int
) -> Iterator[tuple[Offsets, Offsets]]:
    """The same in steps of at most so many records."""
    target = _numbered(ends)
    at = _numbered(starts)
    while at != target:
        until = by_records(snapshot, at, target, records_max)
        yield _texts(at), _texts(until)
        at = until


def count(snapshot: Snapshot, starts: Mapping[str, int], ends: Mapping[str, int]) -> int:
    """Records from here to there."""
    return sum(
        snapshot.partitions[int(number)].records(starts[number], end)
        for number, end in ends.items()
    )


def note_range(metrics: Metrics, starts: Mapping[str, int], ends: Mapping[str, int]) -> None:
    """Widen what a run says that it reads."""
    metrics.start_offsets = dict(starts) | metrics.start_offsets
    metrics.end_offsets = metrics.end_offsets | dict(ends)


def step_options(
    numbers: Iterable[int],
    topic_id: str,
    starts: Mapping[str, int],
    ends: Mapping[str, int],
    *,
    may_lose: bool,
) -> dict[str, str]:
    """Options of a read of a step's records. Partitions that were added since it was planned are
    left out.

    Args:
        numbers: Of the partitions that there are.
        topic_id: Of the topic that the job has begun with, as hex digits: offsets are those of one
            topic, and another one of its name has other records there.
        starts: By partition.
        ends: Likewise, exclusive.
        may_lose: Read what is left where records are gone.
    """
    wanted = sorted(numbers)
    return {
        "startingOffsets": json.dumps({str(n): starts.get(str(n), "earliest") for n in wanted}),
        "endingOffsets": json.dumps({str(n): ends.get(str(n), "earliest") for n in wanted}),
        "topicId": topic_id,
        "failOnDataLoss": str(not may_lose).lower(),
    }


def _numbered(offsets: Offsets) -> dict[int, int]:
    return {int(number): offset for number, offset in offsets.items()}


def _texts(offsets: Mapping[int, int]) -> Offsets:
    return {str(number): offset for number, offset in sorted(offsets.items())}
