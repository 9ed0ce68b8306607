"""Ranges that are near to each other become one request."""

import pytest

from icecore_node.remote.store.object_store import ByteRange
from icecore_node.remote.store.obstore_store import COALESCE_BYTES, StoreSettings, coalesced

FAR = 10 * COALESCE_BYTES


@pytest.mark.parametrize(
    ("asked", "spans"),
    [
        ([], []),
        ([(5, 5)], []),
        ([(0, 10), (10, 20)], [(0, 20)]),
        ([(10, 20), (0, 10)], [(0, 20)]),
        ([(0, 100), (20, 30)], [(0, 100)]),
        ([(0, 10), (10 + COALESCE_BYTES, 11 + COALESCE_BYTES)], [(0, 11 + COALESCE_BYTES)]),
        ([(0, 10), (FAR, FAR + 1), (5, 5)], [(0, 10), (FAR, FAR + 1)]),
    ],
)
def test_coalesced(asked: list[ByteRange], spans: list[ByteRange]) -> None:
    assert coalesced(asked) == spans


def test_options_for_other_libraries() -> None:
    s3 = StoreSettings(url="s3://b/p", region="r", endpoint="http://h:1")
    assert s3.options()["aws_region"] == "r"
    assert s3.is_clear_text
    assert StoreSettings(url="file:///x").options() == {}
