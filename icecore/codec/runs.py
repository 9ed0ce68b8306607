"""Neighbouring small batches as the columns of one.

What a batch costs its reader hardly depends on how many records it has: to make Arrow columns of
one takes as long as to copy a hundred kilobytes. Where records are spread over many partitions
batches are small, so neighbours are put together first; only large ones stay views of what came.
Most runs are decoded together (``run_decoding.py``), the others batch by batch.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import numpy as np

from icecore.codec.batch import BatchHeader
from icecore.codec.columns import BatchColumns, BinaryColumn, IndexColumns, all_valid
from icecore.codec.decoding import decode
from icecore.codec.run_decoding import PLAIN, decode_together
from icecore.errors import BatchTooLargeError, CorruptBatchError

RUN_BYTES_MAX: Final = 2 << 20
"""Maximum size of a run's columns, inflated. By default an answer has fewer bytes of a partition.
So no rest of an answer becomes an Arrow batch of its own."""
RUN_BATCHES_MAX: Final = 64
"""Maximum batches of a run, which takes some milliseconds of the loop. More would gain nothing."""
_SMALL_BYTES_MAX: Final = 64 << 10
"""A batch that is larger is worth columns of its own, without a copy."""
_FEW: Final = 12
"""Fewer batches are decoded one by one: that costs less."""


def may_follow(before: BatchHeader, header: BatchHeader) -> bool:
    """Return whether ``header`` is of a batch that can be joined to the one before it."""
    return (
        header.base_offset == before.end_offset
        and header.producer_flags == before.producer_flags
        and header.schema_id == before.schema_id
        and header.producer_flags & PLAIN == PLAIN
        and not (header.leader_flags or before.leader_flags)
        and max(size_of(header), size_of(before)) <= _SMALL_BYTES_MAX
    )


def size_of(header: BatchHeader) -> int:
    """Bytes of a batch's columns, inflated."""
    return header.index_length + header.uncompressed_length


def decode_run(
    data: memoryview, places: Sequence[tuple[int, BatchHeader]]
) -> tuple[BatchColumns, int]:
    """The columns of batches as those of one, and of how many: of those before the first but one
    that can't be decoded.

    There are no hashes of keys where there are several: who looks at these looks at each batch.

    Args:
        data: Holds the batches.
        places: Position and checked header of each; each ``may_follow`` the one before it.

    Raises:
        CorruptBatchError, BatchTooLargeError: Of the first one, as ``decoding.decode``.
    """
    if len(places) >= _FEW and (columns := decode_together(data, places)) is not None:
        return columns, len(places)
    run = [decode(data, *places[0])]
    for position, header in places[1:]:
        try:
            run.append(decode(data, position, header))
        except (CorruptBatchError, BatchTooLargeError):
            break
    return join(run), len(run)


def join(run: Sequence[BatchColumns]) -> BatchColumns:
    """Decoded batches, each of which ``may_follow`` the one before it, as one; values are copied.

    There are no hashes of keys: who looks at these looks at each batch.
    """
    if len(run) == 1:
        return run[0]
    keys = [each.keys for each in run if each.keys is not None]
    return BatchColumns(
        run[0].base_offset,
        run[-1].append_timestamp_ms,
        IndexColumns(np.concatenate([each.timestamps for each in run])),
        _joined(keys) if keys else None,
        _joined([each.values for each in run]),
        None,
        np.repeat(
            np.array([each.append_timestamp_ms for each in run], "<i8"),
            [len(each) for each in run],
        ),
    )


def _joined(columns: Sequence[BinaryColumn]) -> BinaryColumn:
    starts = accumulate((len(each.data) for each in columns[:-1]), initial=0)
    ends = [each.offsets[1:] + start for each, start in zip(columns, starts, strict=True)]
    offsets = np.concatenate([columns[0].offsets[:1], *ends])
    if any(each.has_nulls for each in columns):
        masks = np.concatenate([each.mask() for each in columns])
        bits = np.packbits(masks, bitorder="little").tobytes()
    else:
        bits = all_valid(len(offsets) - 1)
    return BinaryColumn(bits, offsets, memoryview(b"".join(each.data for each in columns)))
