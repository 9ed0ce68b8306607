"""The image runs as anybody, on a read-only file system, and a cluster in it is used from outside.

``make test-docker`` builds it; ``ICECORE_TEST_IMAGE`` names one that is built already.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from icecore.blocking import Admin, Consumer, Producer
from tests.deploy.images import built_image, docker
from tests.support.ports import free_port_block

HARDENED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL")
ANYBODY = ("--security-opt", "no-new-privileges", "--user", "12345:0")
LISTEN = ("--host", "0.0.0.0", "--advertise", "127.0.0.1", "--insecure-bind")


@pytest.fixture(scope="module")
def image() -> str:
    return built_image()


@dataclass(frozen=True)
class Box:
    """A running container."""

    name: str

    def state(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(docker("inspect", "-f", "{{json .State}}", self.name))
        return found

    def health(self) -> str:
        return docker("inspect", "-f", "{{.State.Health.Status}}", self.name)

    def until_healthy(self) -> None:
        deadline = time.monotonic() + 60
        while self.health() != "healthy":
            assert time.monotonic() < deadline, docker("logs", self.name, check=False)
            time.sleep(0.2)

    def stop(self) -> float:
        """Stop it. Returns the seconds that took."""
        began_s = time.monotonic()
        docker("stop", "--time", "30", self.name)
        return time.monotonic() - began_s


@pytest.fixture
def run(image: str) -> Iterator[object]:
    started: list[str] = []

    def start(options: tuple[str, ...], command: tuple[str, ...]) -> Box:
        started.append(docker("run", "--detach", *options, image, *command))
        return Box(started[-1])

    yield start
    for name in started:
        docker("rm", "--force", "--volumes", name)


def ports(first: int, count: int) -> tuple[str, ...]:
    """Publish ports; a daemon without a bridge has only the network of the host."""
    if "bridge" not in docker("network", "ls", "--format", "{{.Driver}}").split():
        return ("--network", "host")
    last = first + count - 1
    return ("--publish", f"127.0.0.1:{first}-{last}:{first}-{last}")


def test_a_cluster_in_one_container_is_used_from_outside(run: object) -> None:
    port = free_port_block((0, 1, 2, 3, 100, 101, 102, 103))
    box = run(  # type: ignore[operator]
        (*HARDENED, *ANYBODY, *ports(port, 4), "--env", f"ICECORE_METRICS_LISTEN=:{port + 100}"),
        ("icecore", "dev", "--data", "/var/lib/icecore", "--port", str(port), *LISTEN),
    )
    box.until_healthy()
    at = f"127.0.0.1:{port}"
    with Admin(at) as admin:
        admin.create_topic("t", partitions=3, replication_factor=3)
    with Producer(at) as producer:
        sent = [producer.send("t", b"%d" % n, key=b"k%d" % n) for n in range(100)]
        assert {each.result(30).durable_copies for each in sent} <= {2, 3}
    with Consumer(at, "t", start="earliest", stop_at_end=True) as consumer:
        assert sorted(int(each.value) for each in consumer) == list(range(100))
    taken_s = box.stop()
    assert box.state()["ExitCode"] == 0
    assert taken_s < 20


def test_a_server_ends_soon_after_it_was_started(run: object) -> None:
    """Process 1 drops a signal for which it has no handler yet: the init process doesn't."""
    box = run(  # type: ignore[operator]
        (*HARDENED, *ANYBODY), ("icecore-coordinator", "--data", "/var/lib/icecore/c")
    )
    assert box.stop() < 10


def test_image_says_what_it_is_and_runs_as_nobody_special(image: str) -> None:
    about = json.loads(docker("inspect", "-f", "{{json .Config}}", image))
    assert about["User"] == "10001:0"
    labels = about["Labels"]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.version"]
    assert about["Healthcheck"]["Test"][0] == "CMD"
    assert about["Entrypoint"][0] == "/usr/bin/tini"


def test_image_has_no_installer_and_compiled_modules(image: str) -> None:
    script = "ls /opt/icecore/bin; ls /opt/icecore/lib/python3*/site-packages/icecore/__pycache__"
    shown = docker("run", "--rm", "--entrypoint", "sh", image, "-c", script).split()
    assert "icecore-node" in shown and "pip" not in shown
    assert any(each.startswith("errors.") and each.endswith(".pyc") for each in shown)
