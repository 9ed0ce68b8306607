"""``icecore dev`` gives its processes an object store and ports."""

import socket
from pathlib import Path

import pytest
import typer

from icecore.cli import dev
from icecore.dev import METRICS_PORT_OFFSET, LocalCluster
from icecore.errors import ConfigurationError
from icecore.rpc.addresses import split_address
from tests.support.ports import free_port_block


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


def test_who_finds_a_port_in_use_keeps_neither_others_nor_the_folder(tmp_path: Path) -> None:
    port = free_port_block((0, 1, METRICS_PORT_OFFSET + 1))
    cluster = LocalCluster(tmp_path, 1, base_port=port)
    with socket.create_server(("127.0.0.1", port + 1)):
        for start in (cluster.start, cluster.start_coordinator):
            with pytest.raises(ConfigurationError, match=r"\(node-1\) can't be used"):
                start()
            with socket.socket() as other:
                other.bind(("127.0.0.1", port))
            with pytest.raises(ConfigurationError, match=r"\(node-1\) can't be used"):
                LocalCluster(tmp_path, 1, base_port=port).start()


@pytest.mark.parametrize("host", ["::1", "[::1]", "localhost", "127.0.0.1"])
def test_hosts_that_can_be_listened_on(tmp_path: Path, host: str) -> None:
    cluster = LocalCluster(tmp_path, 1, host=host)
    cluster._reserve_ports()
    try:
        for address in (cluster.bootstrap, cluster.addresses[1]):
            found, port = split_address(address)
            assert found == host.strip("[]")
            assert port
    finally:
        cluster.stop()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "0"])
def test_nobody_is_told_a_wildcard(tmp_path: Path, host: str) -> None:
    for given in ({}, {"advertise": host}):
        with pytest.raises(ConfigurationError, match="--advertise"):
            LocalCluster(tmp_path, 1, host=host, **given)
    cluster = LocalCluster(tmp_path, 1, host=host, advertise="::1", base_port=7400)
    assert cluster.bootstrap == "[::1]:7400"
    assert cluster.addresses == {1: "[::1]:7401"}


@pytest.mark.parametrize("name", ["file", "file/below", "loop", "x" * 300])
def test_a_folder_that_can_not_be_used(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigurationError, match=r"data folder .* cannot be used: .*Give --data"):
        LocalCluster(tmp_path / name, 1).start()
    for given in ("", " "):
        with pytest.raises(typer.BadParameter, match="name a folder"):
            dev._folder(given)


@pytest.mark.parametrize("host", ["", "*", "a..b", "two words", "127.0.0.1:7400"])
def test_what_is_no_host(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigurationError, match="no host"):
        LocalCluster(tmp_path, 1, host=host)
