"""An attempt whose tasks of before do not come says what to do."""

from typing import cast

import pytest

from icecore.client.cluster.connection import Connection
from icecore.spark.tasks.division import TASKS_AS_BITS, TaskDivision


@pytest.mark.parametrize("count", [TASKS_AS_BITS, TASKS_AS_BITS + 1])
def test_a_sum_that_may_be_spoilt_asks_for_another_attempt(count: int) -> None:
    division = TaskDivision(cast(Connection, None), "q", 1)
    division._tasks = (*range(count),)
    told = division._missing(1).message
    assert ("start the write again first" in told) == (count > TASKS_AS_BITS)
    assert "idempotent=false" in told
