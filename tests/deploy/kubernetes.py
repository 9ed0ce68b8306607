"""A release of the chart in the Kubernetes of the current context, in a namespace of its own.

It ends with the tests. That Kubernetes has the image already (``ICECORE_TEST_IMAGE``), a default
StorageClass, and a name service. One machine is enough. A test that needs several, or volumes that
follow a pod to another machine, says so.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.deploy.charts import CHART, program

IMAGE = os.environ.get("ICECORE_TEST_IMAGE", "")
RELEASE = "events"
WAIT = ("--wait", "--timeout", "300s")
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
            producer.send("load", b"%d" % number, key=b"%d" % number).result(180)
            acked.append(number)
            if len(acked) == 1:
                print("begun", flush=True)
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


def namespace() -> str:
    """The namespace of this run."""
    return f"icecore-test-{os.getpid()}"


def kubectl(*arguments: str, text: str | None = None, check: bool = True) -> str:
    """Run kubectl in the namespace of the tests. Returns what it prints."""
    command = ["kubectl", "--namespace", namespace(), *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done.stdout + ("" if check else done.stderr)


def found(*arguments: str) -> Any:
    """Objects that ``kubectl get`` finds; None is none."""
    said = kubectl("get", *arguments, "--output", "json")
    return json.loads(said) if said.strip() else None


def try_helm(*arguments: str, timeout_s: int = 400) -> subprocess.CompletedProcess[str]:
    """Run Helm in that namespace; the caller looks at its status."""
    command = [program("helm"), *arguments, "--namespace", namespace()]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)


def helm(*arguments: str) -> str:
    """Run Helm in that namespace. Returns what it prints."""
    done = try_helm(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def values(**more: object) -> tuple[str, ...]:
    """Options of Helm: those of one machine, the image, and more of them, ``a__b`` for ``a.b``."""
    repository, _, tag = IMAGE.rpartition(":")
    said = {"image.repository": repository, "image.tag": tag, "image.pullPolicy": "IfNotPresent"}
    said |= {key.replace("__", "."): str(value) for key, value in more.items()}
    options = [part for key, value in said.items() for part in ("--set", f"{key}={value}")]
    return ("--values", str(CHART / "examples" / "dev.yaml"), *options)


def need_kubernetes() -> None:
    """Skip the test where there is no image, or no Kubernetes."""
    if not IMAGE:
        pytest.skip("name an image that the Kubernetes has: ICECORE_TEST_IMAGE")
    asked = ["kubectl", "get", "nodes", "--request-timeout=10s"]
    if shutil.which("kubectl") is None or subprocess.run(asked, capture_output=True).returncode:
        pytest.skip("no Kubernetes answers kubectl")


@contextmanager
def installed() -> Iterator[str]:
    """An installed release; everything of it goes in the end."""
    need_kubernetes()
    try:
        helm("install", RELEASE, str(CHART), *values(), "--create-namespace", *WAIT)
        yield RELEASE
    finally:
        try_helm("uninstall", RELEASE)
        kubectl("delete", "pvc", "--all", "--wait=false", check=False)
        kubectl("delete", "namespace", namespace(), "--wait=false", check=False)


def node(number: int) -> str:
    """The name of the pod of a node."""
    return f"{RELEASE}-icecore-node-{number}"


def icecore(*arguments: str) -> str:
    """Run a command of icecore in the pod of the coordinator. Returns what it prints."""
    pod = f"{RELEASE}-icecore-coordinator-0"
    return kubectl("exec", pod, "--", "icecore", "--bootstrap", "127.0.0.1:7400", *arguments)


def listed(*arguments: str) -> list[dict[str, Any]]:
    """The items of a command that lists."""
    items: list[dict[str, Any]] = json.loads(icecore("--json", *arguments))["items"]
    return items


def healthy() -> None:
    """Wait until the cluster is."""
    icecore("cluster", "health", "--wait", "180")


def until_ready(pod: str) -> None:
    """Wait for a pod that may not be there yet."""
    deadline = time.monotonic() + 180
    while "True" not in kubectl(
        *("get", "pod", pod, "--output"),
        "jsonpath={.status.conditions[?(@.type=='Ready')].status}",
        check=False,
    ):
        assert time.monotonic() < deadline, kubectl("describe", "pod", pod, check=False)
        time.sleep(1)


def python(script: str, *arguments: str) -> str:
    """Run a script with the client, in the pod of the coordinator. Returns what it prints."""
    pod = f"{RELEASE}-icecore-coordinator-0"
    return kubectl("exec", pod, "--", "python", "-c", script, *arguments)


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
        deadline = time.monotonic() + 60
        while "begun" not in (said := kubectl("logs", name, check=False)):
            assert time.monotonic() < deadline, said
            time.sleep(0.5)

    def result(self) -> dict[str, float]:
        """Wait for its end. Returns its counts."""
        ended = "--for=jsonpath={.status.phase}=Succeeded"
        waited = kubectl("wait", f"pod/{self.name}", ended, "--timeout=300s", check=False)
        assert "condition met" in waited, waited + kubectl("logs", self.name, check=False)
        said = kubectl("logs", self.name).splitlines()[-1]
        print(said)
        return {key: float(value) for key, value in (each.split("=") for each in said.split())}

    def check(self, slowest_s: float = SLOWEST_S) -> None:
        """Wait for its end. Nothing was lost or refused, and nobody waited for long."""
        ended = self.result()
        assert ended["acked"] > 100
        assert (ended["lost"], ended["refused"]) == (0, 0)
        assert ended["slowest"] < slowest_s


APPEND = """
import sys
from icecore.blocking import Admin, Producer

topic, count = sys.argv[1], int(sys.argv[2])
with Admin("127.0.0.1:7400") as admin:
    admin.create_topic(topic, partitions=12, if_not_exists=True)
with Producer("127.0.0.1:7400") as producer:
    sent = [producer.send(topic, b"%d" % number, key=b"%d" % number) for number in range(count)]
    assert all(each.result(60).durable_copies >= 2 for each in sent)
"""
READ = """
import sys
from icecore.blocking import Consumer

with Consumer("127.0.0.1:7400", sys.argv[1], start="earliest", stop_at_end=True) as consumer:
    read = [int(each.value) for each in consumer]
assert sorted(read) == list(range(len(read)))
print(len(read))
"""


def append(topic: str, count: int) -> None:
    """Append so many records to a topic, which is made if need be; all are acknowledged."""
    python(APPEND, topic, str(count))


def read(topic: str) -> int:
    """Read a topic from its begin. Returns how many records it has; none is there twice."""
    return int(python(READ, topic))
