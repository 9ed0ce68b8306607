"""The Compose file starts what it says, and its Prometheus and dashboard show a real cluster.

``make check-helm`` runs it, after ``make setup-helm``, ``setup-etcd`` and ``setup-minio``.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from icecore.process.settings import load
from icecore_coordinator.config import CoordinatorSettings
from icecore_node.config import NodeSettings
from tests.deploy.charts import CHART, ROOT, program
from tests.deploy.compose import (
    DASHBOARD,
    DEMO,
    FILE,
    SERVERS,
    Composed,
    composed,
    services,
    volumes,
)

ALERTS = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
PROMETHEUS = "127.0.0.1:9090"
LOOK_S = 60.0
SILENT = {"Refused produces and fetches", "Errors of object storage"}
"""Panels that show nothing while nothing goes wrong."""


# --- the file itself ------------------------------------------------------------------------------


def test_compose_understands_the_file_as_these_tests_do(tmp_path: Path) -> None:
    done = subprocess.run([program("compose-go"), str(FILE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    understood = yaml.safe_load(done.stdout)["services"]
    assert set(understood) == set(services())
    for name, service in services().items():
        assert understood[name].get("command") == service.get("command")
        said = {key: str(value) for key, value in service.get("environment", {}).items()}
        assert understood[name].get("environment", {}) == said
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(FILE.read_text().replace("stop_grace_period", "stop_grace"))
    done = subprocess.run([program("compose-go"), str(wrong)], capture_output=True, text=True)
    assert done.returncode != 0 and "stop_grace" in done.stderr


def test_files_and_volumes_and_names_of_services_are_there() -> None:
    everything = yaml.safe_load(FILE.read_text())
    used = set()
    for name, service in services().items():
        for source, _, is_file in volumes(service):
            if is_file:
                assert (FILE.parent / source).is_file(), f"{name} mounts {source}"
            else:
                used.add(source)
        for other in service.get("depends_on", ()):
            assert other in services()
        network = service.get("network_mode", "service:machine").partition(":")[2]
        assert network in services()
    assert used == set(everything["volumes"])
    host = services({"ICECORE_HOST": "192.168.1.5"})
    assert "192.168.1.5:7400-7404:7400-7404" in host["machine"]["ports"]
    assert host["node-2"]["environment"]["ICECORE_NODE__ADVERTISE"] == "192.168.1.5:7402"


@pytest.mark.parametrize("name", SERVERS)
def test_servers_understand_their_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = services()[name]
    for key, value in service["environment"].items():
        monkeypatch.setenv(key, value)
    kind: Any = (
        CoordinatorSettings if service["command"] == ["icecore-coordinator"] else NodeSettings
    )
    settings = load(kind, None, {})
    assert settings.insecure_bind and settings.advertise.startswith("127.0.0.1:740")
    published = range(7400, 7405)
    assert int(settings.listen.rpartition(":")[2]) in published


def test_grafana_finds_its_data_source_and_its_dashboard() -> None:
    source = yaml.safe_load((ROOT / "docker" / "grafana.yaml").read_text())
    (prometheus,) = source["datasources"]
    assert source["apiVersion"] == 1 and prometheus["type"] == "prometheus"
    assert prometheus["url"] == "http://prometheus:9090" and prometheus["isDefault"]
    providers = yaml.safe_load((ROOT / "docker" / "grafana-dashboards.yaml").read_text())
    (provider,) = providers["providers"]
    targets = {target for _, target, _ in volumes(services()["grafana"])}
    assert f"{provider['options']['path']}/icecore.json" in targets
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len({*ids}) and DASHBOARD["uid"] and DASHBOARD["schemaVersion"] >= 36
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(cells) == len({*cells}) and max(x for x, _ in cells) < 24, "panels lie over others"
    for panel in DASHBOARD["panels"]:
        assert panel["title"] and panel["targets"] and panel["datasource"]["uid"] == "${datasource}"
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len({*refs}), panel["title"]


# --- what runs ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """All services but Grafana, with records in a topic that is tiered."""
    folder = tmp_path_factory.mktemp("compose")
    with composed(folder, needs=("etcd", "minio", "prometheus")) as found:
        for name in ("etcd", "minio"):
            found.start(name)
        found.until_ready("etcd:2379/health", "etcd")
        found.until_ready("minio:9000/minio/health/ready", "minio")
        for name in ("coordinator", *SERVERS[1:]):
            found.start(name)
            if name == "coordinator":
                found.until_ready("machine:9400/readyz", name)
        found.start("prometheus")
        found.until_ready(f"{PROMETHEUS}/-/ready", "prometheus")
        for port, name in zip((9404, 9401, 9402, 9403), SERVERS[1:], strict=True):
            found.until_ready(f"machine:{port}/readyz", name)
        yield found


def icecore(room: Composed, *arguments: str) -> str:
    bootstrap = ("--bootstrap", "127.0.0.1:7400,127.0.0.1:7404")
    return room.run(str(Path(sys.executable).parent / "icecore"), *bootstrap, *arguments)


def query(room: Composed, expression: str) -> list[dict[str, Any]]:
    """The series of an expression. Prometheus refuses what it cannot parse."""
    said = json.loads(room.ask(f"{PROMETHEUS}/api/v1/query", query=expression))
    assert said["status"] == "success"
    series: list[dict[str, Any]] = said["data"]["result"]
    return series


def shown() -> list[tuple[str, str]]:
    """(title, expression) of each panel, as Grafana asks when all nodes are chosen."""
    found = []
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", "1m").replace("$__interval", "1m")
            found.append((panel["title"], text.replace("$instance", ".*")))
    return found


def test_records_go_in_and_out_and_into_minio(room: Composed) -> None:
    icecore(room, "cluster", "health", "--wait", "120")
    assert int(room.run(sys.executable, "-c", DEMO, "demo")) == 500
    deadline = time.monotonic() + LOOK_S
    while not (said := _tiered(room)):
        assert time.monotonic() < deadline, said
        time.sleep(1)
    assert [
        each for each in (room.folder / "minio" / "icecore").rglob("*.parquet") if each.is_dir()
    ]


def _tiered(room: Composed) -> bool:
    """Return whether sealed segments of the topic are in MinIO, and none waits."""
    (found,) = json.loads(icecore(room, "--json", "tier", "status", "--topic", "demo"))["topics"]
    return bool(found["published_segments"]) and not found["waiting_segments"]


def test_prometheus_scrapes_every_server_and_loads_the_alerts(room: Composed) -> None:
    deadline = time.monotonic() + LOOK_S
    while True:
        targets = json.loads(room.ask(f"{PROMETHEUS}/api/v1/targets"))["data"]["activeTargets"]
        if {each["health"] for each in targets} == {"up"} and len(targets) == len(SERVERS):
            break
        assert time.monotonic() < deadline, targets
        time.sleep(1)
    groups = json.loads(room.ask(f"{PROMETHEUS}/api/v1/rules"))["data"]["groups"]
    loaded = [rule["name"] for group in groups for rule in group["rules"]]
    assert loaded == [each["alert"] for group in ALERTS["groups"] for each in group["rules"]]
    assert not [r["lastError"] for g in groups for r in g["rules"] if r.get("lastError")]


def test_each_panel_shows_something_of_a_cluster_in_use(room: Composed) -> None:
    room.run(sys.executable, "-c", DEMO, "shown")
    empty = shown()
    deadline = time.monotonic() + LOOK_S
    while {title for title, _ in empty} - SILENT and time.monotonic() < deadline:
        empty = [(title, text) for title, text in empty if not query(room, text)]
        time.sleep(1)
    assert not [(title, text) for title, text in empty if title not in SILENT]


def test_each_metric_of_alerts_and_dashboard_is_in_a_real_scrape(room: Composed) -> None:
    asked = [text for _, text in shown()]
    asked += [rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]]
    names = {name for text in asked for name in re.findall(r"\bicecore_[a-z0-9_]+", text)}
    known = set()
    for port in (9400, 9401):
        page = room.ask(f"machine:{port}/metrics").decode()
        for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", page, re.M):
            series = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            known |= {name + each for each in series}
    assert len(names) > 20
    assert sorted(names - known) == []


def test_the_second_coordinator_acts_when_the_first_is_lost_and_all_end_well(
    room: Composed,
) -> None:
    room.stop("coordinator", signal.SIGKILL)
    assert int(room.run(sys.executable, "-c", DEMO, "after")) == 500
    deadline = time.monotonic() + LOOK_S
    while b"icecore_coordinator_active 1" not in room.ask("machine:9404/metrics"):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    room.start("coordinator")
    room.until_ready("machine:9400/readyz", "coordinator")
    for name in ("node-1", "node-2", "node-3", "coordinator", "coordinator-2"):
        assert room.stop(name) == 0, room.log(name)[-3000:]
    for name in ("prometheus", "minio", "etcd"):
        room.stop(name)


def test_promtool_takes_the_configuration(tmp_path: Path) -> None:
    shutil.copy(ROOT / "docker" / "prometheus.yaml", tmp_path)
    shutil.copy(CHART / "files" / "alerts.yaml", tmp_path)
    command = [program("promtool"), "check", "config", str(tmp_path / "prometheus.yaml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
