"""A salvage tells only the part of a log that is proved (R46)."""

import pytest

from icecore_node.storage.segment_engine.segment_header import FILE_HEADER_LENGTH
from icecore_node.storage.segment_engine.segment_names import file_name
from tests.unit.node.storage.segment_engine.test_start_up import Node, write


@pytest.mark.parametrize("damaged", [0, 1])
def test_what_is_behind_a_damaged_batch_is_not_told(damaged: int) -> None:
    node = Node()
    log = write(node.store, 1, sealed=False)
    request = log.request(2)
    node.store.append_group([request])
    assert request.error is None
    node.store.salvage.condemn([1], "an old copy")
    assert node.store.salvage.tail(1) == log.tail
    file = node.disk.names[file_name(log.identity)]
    last = FILE_HEADER_LENGTH + sum(map(len, log.batches[: damaged + 1])) - 1
    file.write(bytes([file.read(1, last)[0] ^ 1]), last)
    assert node.store.salvage.tail(1) == (log.tails[damaged] if damaged else None)
