"""``icecore dev`` gives its processes an object store and ports."""

import socket
from pathlib import Path

import pytest

from icecore.cli import dev
from icecore.dev import LocalCluster


def test_a_folder_beside_the_nodes_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "a b"
    url = dev._tier_url(None, data, has_config=False)
    assert url == f"file://{tmp_path}/a%20b/tier"
    assert dev._tier_url(None, data, has_config=True) == ""
    assert dev._tier_url("none", data, has_config=False) == ""
    assert dev._tier_url("s3://b/p", data, has_config=True) == "s3://b/p"
    monkeypatch.setattr(dev, "_TIER_LIBRARIES", ("obstore", "no_such_library"))
    assert dev._tier_url(None, data, has_config=False) == ""


def test_each_node_is_told(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, 2, tier_url="memory:///")
    for node_id in (1, 2):
        assert cluster.node(node_id).extra[-2:] == ["--tier-url", "memory:///"]
    assert "--tier-url" not in LocalCluster(tmp_path, 1).node(1).extra


def test_ports_are_held_for_servers_and_for_nobody_else(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, 1)
    cluster._reserve_ports()
    try:
        for address in (cluster.bootstrap, cluster.addresses[1]):
            host, _, port = address.rpartition(":")
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((host, int(port)))
            with socket.create_server((host, int(port))), socket.socket() as client:
                client.connect((host, int(port)))
    finally:
        cluster.stop()
    with socket.socket() as other:
        other.bind((host, int(port)))
