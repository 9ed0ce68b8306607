"""From where to where a job goes on, and what it says of records that are gone."""

import pytest

from icecore.errors import OffsetOutOfRangeError
from icecore.spark.plan import PartitionSnapshot, Snapshot
from icecore.spark.runs.offsets import left, reached

SNAPSHOT = Snapshot("t", bytes(16), {0: PartitionSnapshot(10, 100), 1: PartitionSnapshot(0, 0)})


def test_a_partition_that_a_step_did_not_know_is_not_read_again() -> None:
    """A node may say for a while how many partitions there were before."""
    done = [{"end_offsets": {"0": 5, "1": 3}}, {"end_offsets": {"0": 9}}]
    assert reached(done) == {"0": 9, "1": 3}
    assert reached([]) == {}


def test_it_goes_on_where_it_was() -> None:
    assert left(SNAPSHOT, {}, may_lose=False) == ({"0": 10, "1": 0}, {"0": 100, "1": 0})
    assert left(SNAPSHOT, {"0": 40}, may_lose=False) == ({"0": 40, "1": 0}, {"0": 100, "1": 0})
    assert left(SNAPSHOT, {"0": 100, "1": 0}, may_lose=False)[0] == {"0": 100, "1": 0}


@pytest.mark.parametrize(
    ("before", "said", "goes_on", "until"),
    [
        ({"0": 9}, "offsets 9 to 10 were deleted", {"0": 10, "1": 0}, {"0": 100, "1": 0}),
        (
            {"0": 101},
            "t/0 ends at offset 100, and this job has read up to 101",
            {"0": 101, "1": 0},
            {"0": 101, "1": 0},
        ),
        (
            {"1": 1},
            "t/1 ends at offset 0, and this job has read up to 1",
            {"0": 10, "1": 1},
            {"0": 100, "1": 1},
        ),
    ],
)
def test_what_is_gone_is_said(
    before: dict[str, int], said: str, goes_on: dict[str, int], until: dict[str, int]
) -> None:
    """No offset is given out twice (R96): a job that has read further than a leader says waits for
    what comes behind that, and reads nothing again."""
    with pytest.raises(OffsetOutOfRangeError, match=said):
        left(SNAPSHOT, before, may_lose=False)
    starts, ends = left(SNAPSHOT, before, may_lose=True)
    assert (starts, ends) == (goes_on, until)
