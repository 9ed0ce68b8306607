"""The records of ``benchmarks.lookup``: which key is where, as arithmetic; how they are produced.

Every key occurs ten times, in one segment, evenly spread over it. Tags are few, and each is on many
records. Key, tag and value follow from the number of a record, which is its offset.
"""

import time
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from icecore.blocking import Admin, Producer

TOPIC: Final = "lookup"
HITS: Final = 10
TAGS: Final = 16
RECORD_BYTES: Final = 100
BATCH_RECORDS: Final = 20_000
"""Handed over at once."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The number of records in each place."""

    records: int
    segments: int
    """The last of them stays active."""

    def __post_init__(self) -> None:
        assert self.records % (self.segments * BATCH_RECORDS) == 0, "segments are not even"

    @property
    def per_segment(self) -> int:
        """Records."""
        return self.records // self.segments

    @property
    def keys_per_segment(self) -> int:
        """Each of them ``HITS`` times."""
        return self.per_segment // HITS

    def key(self, segment: int, number: int) -> bytes:
        """A key that only this segment has."""
        return b"key-%010d" % (segment * self.keys_per_segment + number)

    def offsets(self, segment: int, number: int) -> list[int]:
        """Return the offsets of the records with that key."""
        first = segment * self.per_segment + number
        return [first + hit * self.keys_per_segment for hit in range(HITS)]

    def rows(self, start: int) -> pa.RecordBatch:
        """The batch that begins with record ``start``."""
        numbers = np.arange(start, start + BATCH_RECORDS)
        segment = start // self.per_segment
        keys = (numbers - segment * self.per_segment) % self.keys_per_segment
        value = b"v" * (RECORD_BYTES - len(self.key(0, 0)))
        return pa.RecordBatch.from_pydict(
            {
                "key": [self.key(segment, number) for number in keys.tolist()],
                "value": pa.repeat(pa.scalar(value), BATCH_RECORDS),
                "tags": [[f"tag-{number % TAGS}"] for number in numbers.tolist()],
            }
        )


def fill(bootstrap: str, layout: Layout, replication_factor: int = 1) -> None:
    """One partition; a segment ends behind each ``per_segment`` records."""
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        admin.create_topic(
            TOPIC, partitions=1, replication_factor=replication_factor, segment_bytes=8 << 30
        )
        for start in range(0, layout.records, BATCH_RECORDS):
            if start and start % layout.per_segment == 0:
                _roll(admin, start)
            rows = layout.rows(start)
            found = producer.send_batch(TOPIC, rows, partition=0)
            assert found[0].base_offset == start, "records are where arithmetic wants them"


def _roll(admin: Admin, offset: int) -> None:
    """End the segment here: what comes before the roll is done would still be in it."""
    admin.roll_topic(TOPIC)
    while admin.list_segments(TOPIC)[-1].base_offset != offset:
        time.sleep(0.02)
