"""The chart in a real Kubernetes: install, use, lose pods, upgrade under load. Nothing is lost.

``make test-kubernetes`` runs it against the Kubernetes of the current context, in a namespace of
its own. That Kubernetes has the image already (``ICECORE_TEST_IMAGE``), a default StorageClass, and
a name service. One machine is enough. It takes some minutes.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest
import yaml

from tests.deploy.charts import CHART, program

IMAGE = os.environ.get("ICECORE_TEST_IMAGE", "")
RELEASE = "events"
LOAD = """
import sys, time
from icecore.blocking import Admin, Consumer, Producer
from icecore.errors import IcecoreError

at, seconds = "events-icecore:7400", float(sys.argv[1])
acked, refused, slowest_s, end = [], 0, 0.0, time.monotonic() + seconds
with Admin(at) as admin:
    admin.create_topic("load", partitions=6, if_not_exists=True)
with Producer(at) as producer:
    number = 0
    while time.monotonic() < end:
        began_s, number = time.monotonic(), number + 1
        try:
            producer.send("load", b"%d" % number, key=b"%d" % number).result(60)
            acked.append(number)
        except IcecoreError:
            refused += 1
        slowest_s = max(slowest_s, time.monotonic() - began_s)
        time.sleep(0.02)
with Consumer(at, "load", start="earliest", stop_at_end=True) as consumer:
    read = {int(each.value) for each in consumer}
print(f"acked={len(acked)} refused={refused} lost={len(set(acked) - read)} slowest={slowest_s:.1f}")
"""
SLOWEST_S = 15.0
"""Half of what a producer waits by default: a busy machine is no reason to fail."""

pytestmark = pytest.mark.timeout(1200)


def kubectl(*arguments: str, text: str | None = None, check: bool = True) -> str:
    """Run kubectl in the namespace of the tests. Returns what it prints."""
    command = ["kubectl", "--namespace", _namespace(), *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done.stdout + ("" if check else done.stderr)


def helm(*arguments: str, timeout_s: int = 400) -> str:
    """Run Helm in that namespace."""
    command = [program("helm"), *arguments, "--namespace", _namespace()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _namespace() -> str:
    return f"icecore-test-{os.getpid()}"


def values(**more: object) -> tuple[str, ...]:
    repository, _, tag = IMAGE.rpartition(":")
    said = {"image.repository": repository, "image.tag": tag, "image.pullPolicy": "IfNotPresent"}
    said |= {key.replace("__", "."): str(value) for key, value in more.items()}
    options = [part for key, value in said.items() for part in ("--set", f"{key}={value}")]
    return ("--values", str(CHART / "examples" / "dev.yaml"), *options)


@pytest.fixture(scope="module")
def release() -> Iterator[str]:
    """An installed release; everything of it goes in the end."""
    if not IMAGE:
        pytest.skip("name an image that the Kubernetes has: ICECORE_TEST_IMAGE")
    if (
        shutil.which("kubectl") is None
        or subprocess.run(
            ["kubectl", "get", "nodes", "--request-timeout=10s"], capture_output=True
        ).returncode
    ):
        pytest.skip("no Kubernetes answers kubectl")
    try:
        wait = ("--create-namespace", "--wait", "--timeout", "300s")
        helm("install", RELEASE, str(CHART), *values(), *wait)
        yield RELEASE
    finally:
        subprocess.run([program("helm"), "uninstall", RELEASE, "--namespace", _namespace()])
        kubectl("delete", "pvc", "--all", "--wait=false", check=False)
        kubectl("delete", "namespace", _namespace(), "--wait=false", check=False)


class Load:
    """A pod that appends records, and then reads all of them."""

    def __init__(self, name: str, seconds: int) -> None:
        self.name = name
        container = {
            "name": "load",
            "image": IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": ["python", "-c", LOAD, str(seconds)],
        }
        spec = {"restartPolicy": "Never", "enableServiceLinks": False, "containers": [container]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        kubectl("apply", "-f", "-", text=yaml.safe_dump(pod))
        kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=60s")

    def result(self) -> dict[str, float]:
        """Wait for its end. Returns its counts."""
        kubectl(
            "wait", f"pod/{self.name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=300s"
        )
        said = kubectl("logs", self.name).splitlines()[-1]
        print(said)
        return {key: float(value) for key, value in (each.split("=") for each in said.split())}


def healthy() -> None:
    pod = f"{RELEASE}-icecore-coordinator-0"
    health = ("icecore", "--bootstrap", "127.0.0.1:7400", "cluster", "health", "--wait", "120")
    kubectl("exec", pod, "--", *health)


def check(found: dict[str, float]) -> None:
    assert found["acked"] > 100
    assert (found["lost"], found["refused"]) == (0, 0)
    assert found["slowest"] < SLOWEST_S


def test_a_release_is_used_from_a_pod(release: str) -> None:
    helm("test", release)
    said = kubectl("logs", f"{release}-icecore-test")
    assert "100 records were acknowledged and read; fewest durable copies: 3" in said


def test_nodes_are_the_numbers_of_their_pods_on_the_machines_of_their_pods(release: str) -> None:
    healthy()
    for number in (1, 2, 3):
        name = f"{release}-icecore-node-{number}"
        machine = kubectl("get", "pod", name, "-o", "jsonpath={.spec.nodeName}")
        node = ("--bootstrap", "127.0.0.1:7400", "--json", "node", "list")
        listed = kubectl("exec", f"{release}-icecore-coordinator-0", "--", "icecore", *node)
        (found,) = (e for e in yaml.safe_load(listed)["items"] if e["node_id"] == number)
        assert found["host"] == machine and found["address"].startswith(name + ".")


def test_pods_that_are_deleted_and_killed_cost_nothing_that_was_acknowledged(release: str) -> None:
    healthy()
    load = Load("deletions", 60)
    kubectl("delete", "pod", f"{release}-icecore-node-2")
    kubectl("delete", "pod", f"{release}-icecore-coordinator-0")
    kubectl("delete", "pod", f"{release}-icecore-node-3", "--force", "--grace-period=0")
    check(load.result())
    healthy()


def test_an_upgrade_under_load_stops_nobody(release: str) -> None:
    healthy()
    load = Load("upgrade", 150)
    began_s = time.monotonic()
    changed = values(config__node__fetch_bytes_max="4MiB")
    helm("upgrade", release, str(CHART), *changed, "--wait", "--timeout", "300s")
    print(f"the upgrade took {time.monotonic() - began_s:.0f} s")
    check(load.result())
    healthy()


def test_evictions_take_one_node_at_a_time(release: str) -> None:
    healthy()
    for number in (1, 2):
        name = f"{release}-icecore-node-{number}"
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        path = f"/api/v1/namespaces/{_namespace()}/pods/{name}/eviction"
        said = kubectl("create", "--raw", path, "-f", "-", text=json.dumps(eviction), check=False)
        assert ("disruption budget" in said) == (number == 2), said
    kubectl(
        "wait",
        f"pod/{release}-icecore-node-1",
        "--for=condition=Ready",
        "--timeout=120s",
        check=False,
    )
    healthy()
