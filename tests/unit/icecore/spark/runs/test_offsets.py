"""From where to where a job goes on, and what it says of records that are gone."""

import pytest

from icecore.errors import OffsetOutOfRangeError
from icecore.spark.plan import PartitionSnapshot, Snapshot
from icecore.spark.runs.offsets import left

SNAPSHOT = Snapshot("t", bytes(16), {0: PartitionSnapshot(10, 100), 1: PartitionSnapshot(0, 0)})


def test_it_goes_on_where_it_was() -> None:
    assert left(SNAPSHOT, {}, may_lose=False) == ({"0": 10, "1": 0}, {"0": 100, "1": 0})
    assert left(SNAPSHOT, {"0": 40}, may_lose=False) == ({"0": 40, "1": 0}, {"0": 100, "1": 0})
    assert left(SNAPSHOT, {"0": 100, "1": 0}, may_lose=False)[0] == {"0": 100, "1": 0}


@pytest.mark.parametrize(
    ("before", "said", "goes_on"),
    [
        ({"0": 9}, "offsets 9 to 10 were deleted", {"0": 10, "1": 0}),
        ({"0": 101}, "t/0 ends at offset 100, and this job has read up to 101", {"0": 100, "1": 0}),
        ({"1": 1}, "t/1 ends at offset 0, and this job has read up to 1", {"0": 10, "1": 0}),
    ],
)
def test_what_is_gone_is_said(before: dict[str, int], said: str, goes_on: dict[str, int]) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=said):
        left(SNAPSHOT, before, may_lose=False)
    starts, ends = left(SNAPSHOT, before, may_lose=True)
    assert (starts, ends) == (goes_on, {"0": 100, "1": 0})
