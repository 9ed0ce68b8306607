"""The shares of descriptors add up, for any limit."""

import pytest

from icecore_node.storage.files.open_files import DescriptorBudget


@pytest.mark.parametrize("limit", [256, 1024, 4096, 20_000, 1 << 20])
def test_files_leave_the_reserve_and_as_much_again_for_connections(limit: int) -> None:
    budget = DescriptorBudget.of(limit, 64)
    left = limit - budget.index_files_max - budget.segment_files_max - 64
    assert left >= budget.segment_files_max
    assert 16 <= budget.segment_files_max <= 65_536
    assert 16 <= budget.index_files_max <= 256
