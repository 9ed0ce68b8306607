"""Tasks as leaders know them."""

import pytest

from icecore.errors import ConfigurationError
from icecore.spark.tasks.identity import TASK_BITS, family_of, identity, task_of


def test_identities() -> None:
    """One per task and micro-batch; epochs grow by one, and never further than leaders allow."""
    assert identity("q", 0, 5) == identity("q", 0, 5)
    ids = {
        identity(name, task, batch)[0] for name in "qr" for task in (0, 1) for batch in (0, 1000)
    }
    assert len(ids) == 8
    assert min(ids) >= 1 << 63
    assert [identity("q", 0, batch)[1] for batch in (0, 1, 999, 1_000)] == [1, 2, 1_000, 1]


def test_tasks_of_a_write_are_neighbours() -> None:
    """So that leaders can be asked for all of them, and no other write is among them."""
    ids = [identity("q", task, 7)[0] for task in (0, 1, (1 << TASK_BITS) - 1)]
    assert {family_of(each) for each in ids} == {(ids[0], ids[-1])}
    assert [task_of(each) for each in ids] == [0, 1, (1 << TASK_BITS) - 1]
    first, last = family_of(identity("r", 0, 7)[0])
    assert not any(first <= each <= last for each in ids)
    with pytest.raises(ConfigurationError, match="put coalesce before it"):
        identity("q", 1 << TASK_BITS, 7)
