"""The address by which a node is called."""

import pytest

from icecore.model import NodeInfo
from icecore.rpc.addresses import Transport, native, peer_address


@pytest.mark.parametrize(
    ("native_address", "transport", "called"),
    [
        ("h:2", "auto", "native://h:2"),
        ("h:2", "grpc", "h:1"),
        ("", "auto", "h:1"),
        ("", "grpc", "h:1"),
    ],
)
def test_natively_where_both_sides_can(
    native_address: str, transport: Transport, called: str
) -> None:
    assert peer_address(NodeInfo(1, "h:1", 1, native_address=native_address), transport) == called


def test_a_node_without_an_address_has_none() -> None:
    assert peer_address(NodeInfo(1, "", 1)) == ""
    assert native("[::1]:5") == "native://[::1]:5"
