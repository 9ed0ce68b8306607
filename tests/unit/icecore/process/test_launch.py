"""Settings of servers that a program starts: what it says wins, also over the environment."""

import os
import tomllib
from pathlib import Path

import pytest

from icecore.dev import LocalCluster
from icecore.process.launch import ServerSettings, as_toml, environment
from icecore.process.settings import load
from icecore_coordinator.config import CoordinatorSettings
from icecore_coordinator.timing import Timing
from icecore_node.config import NodeSettings
from icecore_node.timing import NodeTiming
from tests.support.fast import FAST

COORDINATOR: ServerSettings = {"timing": {"audit_ms": 700}, "lease_ms": 3_000}
NODE: ServerSettings = {"timing": {"digest_calm_ms": 0}, "rack": 'a"b', "insecure_bind": True}


def test_tables_come_behind_what_is_no_table() -> None:
    assert tomllib.loads(as_toml({"node": NODE, "coordinator": COORDINATOR})) == {
        "node": NODE,
        "coordinator": COORDINATOR,
    }


def test_what_a_program_says_wins_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {
        "ICECORE_LEASE_MS": "1000",
        "ICECORE_COORDINATOR__LEASE_MS": "1000",
        "ICECORE_NODE__TIMING": '{"digest_calm_ms": 9}',
        "ICECORE_NODE__LOG_LEVEL": "debug",
    }
    for name, value in {**FAST, **others}.items():
        monkeypatch.setenv(name, value)
    cluster = LocalCluster(tmp_path, 1, coordinator_settings=COORDINATOR, node_settings=NODE)
    cluster._write_settings()
    path = tmp_path / "icecore.toml"
    variables = environment("coordinator", COORDINATOR)
    coordinator = load(CoordinatorSettings, path, {"data": "d"}, variables)
    assert coordinator.waits.audit_ms == 700 and coordinator.lease_ms == 3_000
    look_ms = int(FAST["ICECORE_COORDINATOR__TIMING__LOOK_MS"])
    assert coordinator.waits.look_ms == look_ms < Timing().look_ms, "others are as they were"
    variables = environment("node", NODE)
    node = load(NodeSettings, path, {"data": "d", "node_id": 1}, variables)
    assert (node.timing.digest_calm_ms, node.rack, node.log_level) == (0, 'a"b', "debug")
    assert node.timing.disk_look_ms < NodeTiming().disk_look_ms


def test_without_settings_the_environment_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICECORE_NODE__RACK", "r")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["a", "/b"]))
    found = environment("node", {})
    assert found["PYTHONPATH"] == os.pathsep.join([os.path.abspath("a"), "/b"])
    changed = {"PYTHONPATH", "PYTHONUNBUFFERED"}
    assert {k: v for k, v in found.items() if k not in changed} == {
        k: v for k, v in os.environ.items() if k not in changed
    }
