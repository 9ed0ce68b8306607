"""Limits of a topic, as a producer heeds them before a leader would refuse a whole batch.

A leader checks batches, so that one record beyond a limit would take its neighbours with it
(``codec/decoding.py`` and ``codec/batch.py`` have its rules). Here the same rules decide about one
record alone, and about how large a batch may become. The limits come with the topic's metadata; a
segment that was opened under others refuses what does not fit, and ``settling.py`` divides it.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from icecore.codec.batch import READER_LIMITS, BatchLimits
from icecore.codec.columns import Headers
from icecore.errors import RecordTooLargeError

if TYPE_CHECKING:
    import pyarrow as pa

RecordParts: TypeAlias = tuple[bytes | None, bytes | None, Sequence[str], Headers]
"""Value, key, tags and headers."""
_HEADER_BITS_BYTES = 8.125
"""Two offsets and a validity bit of a header, all of them in the payload."""
_SLACK_BYTES = (1 << 16) - 256
"""Bytes that a payload may have beside those of its records, with room for padding."""
_BATCH_OVERHEAD_BYTES = 512

CAPS = READER_LIMITS
"""No topic allows more."""


def why_too_large(
    limits: BatchLimits,
    value: bytes | None,
    key: bytes | None,
    tags: Sequence[str],
    headers: Headers,
) -> RecordTooLargeError | None:
    """Return why no leader takes this record, alone in a batch; None when it fits."""
    limit = limits.record_bytes_max
    header_bytes = sum(len(name.encode()) + len(value or b"") for name, value in headers)
    own = len(value or b"") + len(key or b"") + header_bytes
    if own > limit:
        return RecordTooLargeError(f"a record of {own} bytes exceeds {_said(limit)}")
    tag_bytes = sum(len(tag.encode()) for tag in tags)
    if tag_bytes > limit:
        return RecordTooLargeError(f"tags of {tag_bytes} bytes of a record exceed {_said(limit)}")
    if own + len(headers) * _HEADER_BITS_BYTES > limit + _SLACK_BYTES:
        return RecordTooLargeError(
            f"a record with {len(headers)} headers takes more in a batch than {_said(limit)}"
        )
    return None


def why_row_too_large(
    limits: BatchLimits, sizes: Any, record: Callable[[int], RecordParts]
) -> RecordTooLargeError | None:
    """Return why no leader takes the first row that is too large; None when all fit.

    Args:
        limits: Of the topic.
        sizes: Bytes of each row, tags and offsets included: an array.
        record: Gives the row with a number.
    """
    for row in np.flatnonzero(sizes > limits.record_bytes_max).tolist():
        error = why_too_large(limits, *record(row))
        if error is not None:
            return RecordTooLargeError(f"row {row}: {error.message}")
    return None


def row_of(rows: "pa.RecordBatch", row: int) -> RecordParts:
    """One row of what ``codec/arrow.py`` has checked."""
    found = rows.slice(row, 1).to_pylist()[0]
    headers = tuple((each["key"], each["value"]) for each in found.get("headers") or () if each)
    return found["value"], found.get("key"), found.get("tags") or (), headers


def _said(limit: int) -> str:
    return f"{limit}, the record_bytes_max of its topic"


def batch_bytes_cap(limits: BatchLimits) -> int:
    """Largest batch, as a producer counts its bytes, that surely has room in a topic.

    Three parts in eleven are for what is not counted: empty lists of tags and headers, and bits.
    """
    room = min(limits.batch_bytes_max, limits.uncompressed_bytes_max) - _BATCH_OVERHEAD_BYTES
    return max(1, room // 11 * 8)
