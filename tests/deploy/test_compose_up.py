"""``docker compose up --wait`` starts a whole cluster, which works, ends and comes back.

``make test-docker`` runs it, where Docker and its Compose plugin answer. Images that the daemon has
by the names of the file are taken; it pulls the others. The project has a name of its own, so
another cluster of the same file keeps its volumes. Its ports are those of the file.

It passed with Docker 20.10, Compose 2.40.3 and images made by hand, because no registry was in
reach: etcd 3.6.16 on an empty image, MinIO of 2026-02-12 and Prometheus 3.5.0 (its files as source
of targets only) on Debian, with users, volumes and entrypoints of the real ones. The test of
Grafana has not run yet: no image of it could be had.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from icecore.blocking import Consumer
from tests.deploy.compose import DASHBOARD, DEMO, FILE, SERVERS, services
from tests.deploy.images import built_image, docker

AT = "127.0.0.1:7400,127.0.0.1:7404"
PROMETHEUS, GRAFANA = "http://127.0.0.1:9090", "http://127.0.0.1:3000"
COORDINATORS = {"machine:9400": "coordinator", "machine:9404": "coordinator-2"}
LOOK_S = 60.0


class Project:
    """The services of the file as one project of Compose."""

    def __init__(self, image: str) -> None:
        self.name = f"icecore-test-{os.getpid()}"
        self._environment = {**os.environ, "ICECORE_IMAGE": image, "ICECORE_HOST": "127.0.0.1"}
        self.services = services(self._environment)
        self.left_out: set[str] = set()
        self.volumes: set[str] = set()

    def compose(self, *arguments: str) -> str:
        """Run a command of Compose. Returns what it prints."""
        done = self._run(*arguments)
        assert done.returncode == 0, done.stderr + self._run("logs", "--tail=40").stdout
        return done.stdout

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", "compose", "--project-name", self.name, "--file", str(FILE), *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=400,
        )

    def up(self) -> None:
        """Start all services that have an image, as a user does."""
        some = set(self.services) - self.left_out if self.left_out else ()
        self.compose("up", "--wait", *some)
        for each in self.containers().values():
            self.volumes |= {m["Name"] for m in each["Mounts"] if m["Type"] == "volume"}

    def containers(self) -> dict[str, dict[str, Any]]:
        """Each service's container, as the daemon describes it."""
        label = f"label=com.docker.compose.project={self.name}"
        ids = docker("ps", "--all", "--quiet", "--filter", label).split()
        found = json.loads(docker("inspect", *ids)) if ids else []
        return {each["Config"]["Labels"]["com.docker.compose.service"]: each for each in found}

    def published(self) -> Iterator[int]:
        """Ports of this machine that the file takes."""
        for service in self.services.values():
            for text in service.get("ports", ()):
                first, _, last = text.split(":")[-2].partition("-")
                yield from range(int(first), int(last or first) + 1)

    def pull(self) -> dict[str, str]:
        """Bring the images that are not here. Returns those that can't be had, by service."""
        missing = {}
        for name, service in self.services.items():
            image = service["image"]
            here = ["docker", "image", "inspect", image]
            pull = ["docker", "pull", "--quiet", image]
            if all(subprocess.run(each, capture_output=True).returncode for each in (here, pull)):
                missing[name] = image
        return missing


@pytest.fixture(scope="module")
def project() -> Iterator[Project]:
    """A running project. Without Grafana's image it runs without Grafana."""
    found = Project(built_image())
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        pytest.skip("there is no Compose: install Docker's plugin for it")
    for port in found.published():
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"port {port} is taken: end what listens there, Compose needs it")
    missing = found.pull()
    if missing.keys() - {"grafana"}:
        pytest.skip(f"images can't be pulled: {', '.join(missing.values())}")
    found.left_out |= missing.keys()
    try:
        found.up()
        yield found
    finally:
        found.compose("down", "--volumes", "--timeout=1")


def use(topic: str) -> int:
    """500 records more for a topic, in and out, by a client outside. Returns how many it has."""
    command = [sys.executable, "-c", DEMO, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout)


def ask(url: str, body: object = None, **parameters: str) -> Any:
    """The JSON that a server answers."""
    query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url + query, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return json.loads(answer.read())


def until(condition: Callable[[], object]) -> None:
    """Wait until it is so. A server that does not answer yet is no failure."""
    deadline = time.monotonic() + LOOK_S
    while True:
        try:
            if condition():
                return
            last: object = "it did not become so"
        except OSError as error:
            last = error
        assert time.monotonic() < deadline, last
        time.sleep(0.5)


def query(expression: str) -> list[dict[str, Any]]:
    """The series of an expression, by Prometheus."""
    said = ask(f"{PROMETHEUS}/api/v1/query", query=expression)
    series: list[dict[str, Any]] = said["data"]["result"]
    return series


def acting() -> list[str]:
    """Coordinators that act, as Prometheus knows them."""
    series = query("icecore_coordinator_active == 1")
    return [COORDINATORS[each["metric"]["instance"]] for each in series]


def test_up_waits_until_every_server_is_healthy(project: Project) -> None:
    found = project.containers()
    assert found.keys() == project.services.keys() - project.left_out
    assert {each["State"]["Status"] for each in found.values()} == {"running"}
    health = {n: each["State"]["Health"]["Status"] for n, each in found.items() if n in SERVERS}
    assert health == dict.fromkeys(SERVERS, "healthy")
    assert [name for name, each in found.items() if each["RestartCount"]] == []


def test_records_go_in_and_out_and_into_minio(project: Project) -> None:
    assert use("demo") == 500

    def tiered() -> bool:
        command = [str(Path(sys.executable).parent / "icecore"), "--bootstrap", AT, "--json"]
        said = subprocess.run(
            [*command, "tier", "status", "--topic", "demo"], capture_output=True, check=True
        )
        (topic,) = json.loads(said.stdout)["topics"]
        return bool(topic["published_segments"]) and not topic["waiting_segments"]

    until(tiered)
    assert ".parquet" in project.compose("exec", "-T", "minio", "ls", "-R", "/data/icecore/cluster")


def test_prometheus_scrapes_every_server(project: Project) -> None:
    until(lambda: len(query("up == 1")) == len(SERVERS))
    groups = ask(f"{PROMETHEUS}/api/v1/rules")["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert rules and not [rule["lastError"] for rule in rules if rule.get("lastError")]


def test_grafana_shows_the_dashboard_and_asks_prometheus(project: Project) -> None:
    """A visitor who has not signed in sees them."""
    if "grafana" in project.left_out:
        pytest.skip(f"{project.services['grafana']['image']} can't be pulled")
    until(lambda: ask(f"{GRAFANA}/api/health")["database"] == "ok")
    until(lambda: ask(f"{GRAFANA}/api/search", query="icecore"))
    shown = ask(f"{GRAFANA}/api/dashboards/uid/{DASHBOARD['uid']}")
    assert shown["meta"]["provisioned"]
    titles = [panel["title"] for panel in shown["dashboard"]["panels"]]
    assert titles == [panel["title"] for panel in DASHBOARD["panels"]]
    expression = DASHBOARD["panels"][0]["targets"][0]["expr"]
    asked = {
        "refId": "A",
        "datasource": {"type": "prometheus", "uid": "prometheus"},
        "expr": expression,
        "instant": True,
    }
    body = {"queries": [asked], "from": "now-5m", "to": "now"}
    until(lambda: query(expression))
    answer = ask(f"{GRAFANA}/api/ds/query", body)["results"]["A"]
    assert answer["status"] == 200 and answer["frames"], answer


def test_the_standby_acts_when_the_acting_coordinator_is_killed(project: Project) -> None:
    until(lambda: len(acting()) == 1)
    (lost,) = acting()
    (other,) = set(COORDINATORS.values()) - {lost}
    project.compose("kill", lost)
    assert use("after") == 500
    until(lambda: acting() == [other])
    project.up()
    assert project.containers()[lost]["State"]["Health"]["Status"] == "healthy"


def test_down_keeps_the_records_and_with_volumes_it_leaves_nothing(project: Project) -> None:
    assert use("kept") == 500
    project.compose("stop")
    ended = project.containers()
    assert {name: ended[name]["State"]["ExitCode"] for name in SERVERS} == dict.fromkeys(SERVERS, 0)
    project.compose("down")
    assert not project.containers()
    project.up()
    with Consumer(AT, "kept", start="earliest", stop_at_end=True) as consumer:
        assert sorted(int(each.value) for each in consumer) == list(range(500))
    project.compose("down", "--volumes")
    assert not project.containers()
    assert project.volumes and not project.volumes & set(docker("volume", "ls", "--quiet").split())
    assert not docker("network", "ls", "--quiet", "--filter", f"name={project.name}")
