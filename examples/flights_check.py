"""Checks that a store keeps every record once, in order per key, and alike on every copy."""

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from examples.flights import Departure
from icecore.codec.record import Record
from icecore.model import Segment, SegmentState

ROW_HEADER = "row"
_SHOWN_MAX = 5


@dataclass(slots=True)
class Fetched:
    """Compares fetched records with the departures they were made from."""

    source: Sequence[Departure]
    fetched: int = 0
    duplicated: int = 0
    reordered: int = 0
    differing: int = 0
    problems: list[str] = field(default_factory=list)
    _seen: bytearray = field(init=False)
    _last_row: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    _next_offset: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        self._seen = bytearray(len(self.source))

    def add(self, record: Record) -> None:
        """Check one record. Records of a partition must come in the order of their offsets."""
        self.fetched += 1
        expected_offset = self._next_offset[record.partition]
        if record.offset != expected_offset:
            self._problem(f"partition {record.partition}: {record.offset}, not {expected_offset}")
            self.differing += 1
        self._next_offset[record.partition] = record.offset + 1
        names = dict(record.headers)
        row = int(names.get(ROW_HEADER) or b"-1")
        if not 0 <= row < len(self.source):
            self.differing += 1
            self._problem(f"a record without a row number at {record.partition}/{record.offset}")
            return
        if self._seen[row]:
            self.duplicated += 1
            self._problem(f"row {row} came twice")
        self._seen[row] = 1
        expected = self.source[row]
        content = (record.key, tuple(record.tags), record.timestamp_ms, record.value)
        if content != (expected.key, expected.tags, expected.timestamp_ms, expected.value):
            self.differing += 1
            self._problem(f"row {row} differs: {content}")
        if record.key is not None:
            self._check_order(record.key, record.partition, row)

    def _check_order(self, key: bytes, partition: int, row: int) -> None:
        """Rows of a key are in one partition and in the order they were sent."""
        last_partition, last_row = self._last_row.get(key, (partition, -1))
        if partition != last_partition or row <= last_row:
            self.reordered += 1
            self._problem(f"row {row} of {key!r} after row {last_row}, in partition {partition}")
        self._last_row[key] = (partition, row)

    @property
    def lost(self) -> int:
        """Rows that did not come."""
        return len(self._seen) - sum(self._seen)

    def _problem(self, text: str) -> None:
        if len(self.problems) < _SHOWN_MAX:
            self.problems.append(text)


@dataclass(slots=True)
class Copies:
    """The findings about sealed segments from the files of all nodes."""

    sealed_segments: int = 0
    min_copies: int = 0
    problems: list[str] = field(default_factory=list)


def compare_copies(segments: Sequence[Segment], data_folders: dict[int, Path]) -> Copies:
    """Recompute the full digest of each replica of each sealed segment from its file.

    Args:
        segments: As the coordinator listed them, with the nodes that hold copies.
        data_folders: By node id, of stopped nodes.
    """
    result = Copies()
    reports = {node_id: _verify(folder, result) for node_id, folder in data_folders.items()}
    counts = []
    for segment in segments:
        if segment.state is not SegmentState.SEALED:
            continue
        result.sealed_segments += 1
        copies = {n: reports[n].get(segment.segment_id) for n in segment.replicas}
        digests = {n: copy["full_digest"] for n, copy in copies.items() if _is_good(copy, segment)}
        if len(set(digests.values())) > 1 or len(digests) != len(segment.replicas):
            result.problems.append(f"segment {segment.segment_id}: copies differ: {copies}")
        if segment.full_digest and set(digests.values()) != {segment.full_digest.hex()}:
            result.problems.append(f"segment {segment.segment_id}: not the digest agreed on")
        counts.append(len(digests))
    result.min_copies = min(counts, default=0)
    return result


def _is_good(copy: dict[str, object] | None, segment: Segment) -> bool:
    return (
        copy is not None
        and not copy["problem"]
        and copy["state"] == "sealed"
        and (copy["base_offset"], copy["end_offset"]) == (segment.base_offset, segment.end_offset)
    )


def _verify(folder: Path, result: Copies) -> dict[int, dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-m", "icecore_node.storage.inspect", str(folder), "--json"],
        stdout=subprocess.PIPE,
        check=False,
    )
    report = json.loads(done.stdout) if done.stdout else {"replicas": []}
    if done.returncode:
        damaged = [each for each in report["replicas"] if each["problem"]]
        result.problems.append(f"{folder}: {damaged or 'can not be verified'}")
    return {each["segment_id"]: each for each in report["replicas"]}
