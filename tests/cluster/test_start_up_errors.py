"""A process that cannot start says why in one line, which also says what to do."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from icecore.dev import LocalCluster
from icecore.errors import UnavailableError


def run(module: str, *arguments: object) -> str:
    """Start a process that must refuse; what it said on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return done.stderr


def node(cluster: LocalCluster, data: Path, node_id: int = 9, *more: object) -> str:
    listen = () if "--listen" in more else ("--listen", "127.0.0.1:0")
    arguments = ("--data", data, "--node-id", node_id, "--coordinator", cluster.bootstrap)
    return run("icecore_node", *arguments, *listen, *more)


def test_data_folder_in_use(shared_cluster: LocalCluster) -> None:
    said = node(shared_cluster, shared_cluster.folder / "node-1", 1)

    assert f"already in use by pid {shared_cluster.pids['node-1']}" in said


def test_coordinator_folder_in_use(shared_cluster: LocalCluster) -> None:
    data = shared_cluster.folder / "coordinator"

    assert "in use" in run("icecore_coordinator", "--data", data, "--listen", "127.0.0.1:0")


def test_port_in_use(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    taken = shared_cluster.addresses[1]

    assert f"{taken.split(':')[1]}" in node(shared_cluster, tmp_path / "n", 9, "--listen", taken)
    said = run("icecore_coordinator", "--data", tmp_path / "c", "--listen", taken)
    assert "in use" in said


@pytest.mark.parametrize("module", ["icecore_node", "icecore_coordinator"])
def test_open_bind_needs_consent(shared_cluster: LocalCluster, tmp_path: Path, module: str) -> None:
    arguments = ["--data", tmp_path / "x", "--listen", "0.0.0.0:0"]
    if module == "icecore_node":
        arguments += ["--node-id", 9, "--coordinator", shared_cluster.bootstrap]

    assert "--insecure-bind" in run(module, *arguments)
    assert not (tmp_path / "x" / "control.db").exists()


def test_a_wildcard_needs_an_address_for_others(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    said = node(shared_cluster, tmp_path, 9, "--listen", "0.0.0.0:0", "--insecure-bind")
    assert "--advertise HOST:PORT" in said
    assert not (tmp_path / "control.db").exists()


def test_folder_of_another_node_and_cluster(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "other", nodes=1) as other:
        other.stop_node(1)
        folder = other.folder / "node-1"
        assert "belongs to node 1, this is node 3" in node(other, folder, 3)
    said = node(shared_cluster, folder, 1)
    assert "cluster" in said
    assert "WRONG_CLUSTER" in said or "belongs to" in said


def test_unknown_setting_names_the_nearest(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    config = tmp_path / "icecore.toml"
    config.write_text("[node]\nio_worker = 3\n")

    said = node(shared_cluster, tmp_path / "n", 9, "--config", config)

    assert "io_worker" in said
    assert "io_workers" in said


@pytest.mark.parametrize("name", ["coordinator", "node-2"])
def test_a_cluster_names_the_process_that_does_not_start(tmp_path: Path, name: str) -> None:
    """All start at once; nodes that wait for a dead coordinator are not to blame."""
    cluster = LocalCluster(tmp_path, nodes=2)
    member = cluster.coordinator if name == "coordinator" else cluster.node(2)
    member.extra += ["--no-such-flag"]
    with pytest.raises(UnavailableError, match=rf"^{name} ended with status .*(\n.*)*no-such-flag"):
        cluster.start()
    assert not cluster.pids


@pytest.mark.parametrize("module", ["icecore_node", "icecore_coordinator"])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("file", "File exists"),
        ("x" * 300, "File name too long"),
        ("", "it is empty: name a folder"),
    ],
)
def test_a_data_folder_that_can_not_be_used(
    tmp_path: Path, module: str, name: str, why: str
) -> None:
    (tmp_path / "file").touch()
    more = ("--node-id", 9) if module == "icecore_node" else ()
    data = str(tmp_path / name) if name else ""
    said = run(module, "--data", data, "--listen", "127.0.0.1:0", *more)
    assert re.search(rf"(?m)^icecore-\w+: .*({why})", said)
