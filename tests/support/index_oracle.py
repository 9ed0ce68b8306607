"""The results that an index must find, by brute force: logs with keys and tags, and the records
that have each.

``check_found`` asks an engine as a query does, page by page, reads the ranges named as gaps, and
compares. It works at the level of hashes, so that it also holds where all hashes are the same.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from icecore.codec.batch import HEADER_LENGTH, peek
from icecore.codec.index_entries import batch_entries
from icecore.codec.record import encode_columns
from icecore_node.storage.engine import AppendRequest, LogIndex, OffsetRange
from tests.conformance.log_builder import LogBuilder

Found = dict[int, set[int]]
"""Offsets by hash."""


def keyed(keys: Sequence[bytes | None], tags: Sequence[Sequence[str]] | None = None) -> bytes:
    """A batch as it is produced."""
    count = len(keys)
    values = [b"v"] * count
    return encode_columns(values=values, timestamps_ms=[7] * count, keys=keys, tags=tags)


def random_batch(rng: random.Random) -> bytes:
    """Return a batch, mostly of one record, with keys, tags, both or neither."""
    count = rng.choice([1, 1, 1, 2, 5, 70])
    keys = [rng.choice([None, b"", b"k%d" % rng.randrange(20)]) for _ in range(count)]
    tags = [[f"t{rng.randrange(4)}" for _ in range(rng.choice([0, 1, 3]))] for _ in range(count)]
    shape = rng.randrange(5)
    return keyed(keys if shape else [None] * count, tags if shape > 1 else None)


def append_random(log: LogBuilder, rng: random.Random, batches: int) -> AppendRequest:
    """A request for new batches; each as header and body."""
    first = len(log.batches)
    for _ in range(batches):
        log.add(random_batch(rng))
    return log.request_of(first, len(log.batches))


def entries_of(log: LogBuilder, span: OffsetRange) -> Found:
    """Return the entries of all records in a range of offsets."""
    found: Found = defaultdict(set)
    base = log.identity.base_offset
    for batch in log.batches:
        _, start, end = peek(batch)
        if start < span[1] and end > span[0]:
            for one, ordinal in _pairs(batch, start - base):
                if span[0] <= base + ordinal < span[1]:
                    found[one].add(base + ordinal)
    return found


@lru_cache(maxsize=10_000)
def _pairs(batch: bytes, first_ordinal: int) -> list[tuple[int, int]]:
    entries = batch_entries(batch, batch[HEADER_LENGTH:], first_ordinal)
    assert entries is not None
    hashes = np.frombuffer(entries.hashes, "<u8").tolist()
    return list(zip(hashes, np.frombuffer(entries.ordinals, "<u4").tolist(), strict=True))


def check_found(
    index: LogIndex,
    log: LogBuilder,
    asked: OffsetRange | None = None,
    *,
    limit: int = 1 << 30,
    newest_first: bool = False,
    absent: Sequence[int] = (12345,),
) -> list[OffsetRange]:
    """Ask for all hashes there are, and others. Returns the gaps."""
    asked = asked or (log.identity.base_offset, log.tail.end_offset)
    expected = entries_of(log, asked)
    hashes = [*expected, *absent]
    found: Found = defaultdict(set)
    gaps: list[OffsetRange] = []
    start, end = asked
    while start < end:
        page = index.candidates(
            log.identity.segment_id, hashes, (start, end), limit=limit, newest_first=newest_first
        )
        low, high = page.searched
        assert start <= low < high <= end
        assert (high == end) if newest_first else (low == start)
        for one, offsets in zip(hashes, page.offsets, strict=True):
            assert (np.diff(offsets) > 0).all()
            assert len(offsets) == 0 or (low <= offsets[0] and offsets[-1] < high)
            assert len(offsets) <= limit
            found[one].update(offsets.tolist())
        for gap in page.gaps:
            assert low <= gap[0] < gap[1] <= high
            for one, scanned in entries_of(log, gap).items():
                found[one] |= scanned
        gaps += page.gaps
        start, end = (start, low) if newest_first else (high, end)
    assert {one: offsets for one, offsets in found.items() if offsets} == expected
    return gaps


def check_all_ways(index: LogIndex, log: LogBuilder, rng: random.Random) -> list[OffsetRange]:
    """The whole log and a part of it, from both ends, with and without a limit."""
    base, end = log.identity.base_offset, log.tail.end_offset
    part = (rng.randint(base, end), rng.randint(base, end))
    if part[0] < part[1]:
        check_found(index, log, part, limit=rng.choice([1, 3, 1000]))
        check_found(index, log, part, newest_first=True, limit=rng.choice([1, 3, 1000]))
    check_found(index, log, newest_first=True)
    return check_found(index, log)


def maintain_all(index: LogIndex, steps_max: int = 100_000) -> int:
    """Until there is nothing to do; how many steps that took."""
    for step in range(steps_max):
        if not index.maintain():
            return step
    raise AssertionError("it never ends")
