"""A reader knows its place in one partition, and counts the records that it passed over."""

import pytest

from icecore.client.consume.reader import Reader
from icecore.model import OFFSETS_LEFT_OUT


@pytest.mark.parametrize("holes", [0, 1, 3])
def test_offsets_that_were_left_out_are_no_records(holes: int) -> None:
    reader = Reader(0, 5, None)
    reader.skip_to(holes * OFFSETS_LEFT_OUT + 100)
    assert (reader.offset, reader.skipped_records) == (holes * OFFSETS_LEFT_OUT + 100, 95)
    reader.skip_to(7)  # the log ends there
    assert (reader.offset, reader.delivered, reader.skipped_records) == (7, 7, 95)
