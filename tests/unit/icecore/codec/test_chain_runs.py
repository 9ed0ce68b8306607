"""A follower takes only batches that were written one behind the other, by one leader."""

from typing import Any

import pytest

from icecore.codec.batch import BatchHeader
from icecore.codec.chain import check_run, follows
from icecore.errors import CorruptBatchError


def header(base: int, end: int, prev_crc: int, crc: int, **changes: Any) -> BatchHeader:
    """Return the header of a batch of segment 7 and epoch 5."""
    blank = BatchHeader(*([0] * len(BatchHeader._fields)))
    return blank._replace(
        **{
            "segment_id": 7,
            "epoch": 5,
            "base_offset": base,
            "end_offset": end,
            "prev_header_crc32c": prev_crc,
            "header_crc32c": crc,
            **changes,
        }
    )


FIRST, SECOND = header(100, 110, 1, 2), header(110, 115, 2, 3)


def test_a_run() -> None:
    check_run([], 7, 5)
    check_run([FIRST], 7, 5)
    check_run([FIRST, SECOND, header(115, 116, 3, 4)], 7, 5)
    assert follows(SECOND, FIRST)


@pytest.mark.parametrize(
    "headers",
    [
        [FIRST._replace(segment_id=8)],
        [FIRST._replace(epoch=4)],
        [FIRST, SECOND._replace(epoch=6)],
        [FIRST, SECOND._replace(base_offset=111)],
        [FIRST, SECOND._replace(prev_header_crc32c=9)],
        [SECOND, FIRST],
        [FIRST, FIRST],
    ],
    ids=["segment", "epoch", "later epoch", "gap", "chain", "order", "twice"],
)
def test_what_is_no_run(headers: list[BatchHeader]) -> None:
    with pytest.raises(CorruptBatchError):
        check_run(headers, 7, 5)
