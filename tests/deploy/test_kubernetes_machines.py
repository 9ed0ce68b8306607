"""Machines are emptied and lie in zones; a release of a hundred nodes, on machines that kwok plays.

``make test-kubernetes`` runs it, as far as the Kubernetes has the machines.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.deploy.charts import CHART
from tests.deploy.kubernetes import (
    WAIT,
    Load,
    append,
    found,
    healthy,
    helm,
    kubectl,
    listed,
    namespace,
    node,
    read,
    try_helm,
    values,
)

pytestmark = pytest.mark.timeout(1200)

ZONE = "topology.kubernetes.io/zone"
HOSTNAME = "kubernetes.io/hostname"
FAKE = "kwok.x-k8s.io/node"
MACHINES = 100


def machines() -> dict[str, dict[str, Any]]:
    """Machines that take pods, by name, with their labels."""
    return {
        each["metadata"]["name"]: each["metadata"]["labels"]
        for each in found("nodes")["items"]
        if not each["spec"].get("taints") and not each["spec"].get("unschedulable")
    }


def places() -> dict[int, str]:
    """The machine of each node."""
    return {number: found("pod", node(number))["spec"]["nodeName"] for number in (1, 2, 3)}


def stay_with_a_machine() -> bool:
    """Return whether a volume of the release can be used on one machine only."""
    volumes = [each["spec"] for each in found("pv")["items"]]
    ours = [each for each in volumes if each.get("claimRef", {}).get("namespace") == namespace()]
    return any(HOSTNAME in json.dumps(each.get("nodeAffinity")) for each in ours)


@pytest.fixture
def spread(release: str) -> Iterator[None]:
    """Nodes on machines of their own, where there are three."""
    if len(machines()) < 3:
        pytest.skip("three machines are needed")
    helm("upgrade", release, str(CHART), *values(nodes__spread__machines="DoNotSchedule"), *WAIT)
    healthy()
    yield
    helm("upgrade", release, str(CHART), *values(), *WAIT)
    healthy()


@pytest.mark.usefixtures("spread")
def test_copies_lie_in_the_zones_of_machines() -> None:
    zones = {name: labels.get(ZONE, "") for name, labels in machines().items()}
    if len({*zones.values()} - {""}) < 3:
        pytest.skip("three zones are needed")
    placed = places()
    assert len({*placed.values()}) == 3
    racks = {each["node_id"]: each["rack"] for each in listed("node", "list")}
    assert racks == {number: zones[machine] for number, machine in placed.items()}
    append("zones", 60)
    for segment in listed("segment", "list", "zones"):
        assert len({racks[each] for each in segment["replicas"]}) == 3


def test_machines_are_emptied_one_node_at_a_time(release: str) -> None:
    if len(machines()) < 3:
        pytest.skip("three machines are needed")
    if stay_with_a_machine():
        pytest.skip("a StorageClass whose volumes follow a pod to another machine is needed")
    healthy()
    append("drained", 100)
    # Behind the first one, one machine of the others has two nodes at least.
    first = places()[1]
    load = Load("drain", 200)
    emptied = []
    try:
        for machine in (first, None):
            machine = machine or Counter(places().values()).most_common()[0][0]
            emptied.append(machine)
            options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force")
            kubectl("drain", machine, *options, "--timeout=300s", "--pod-selector=" + OURS)
            assert machine not in places().values()
            kubectl("wait", "pod", "--selector", OURS, "--for=condition=Ready", "--timeout=180s")
    finally:
        for machine in emptied:
            kubectl("uncordon", machine)
    load.check()
    healthy()
    assert read("drained") == 100


OURS = "app.kubernetes.io/name=icecore,app.kubernetes.io/component!=test"
"""Pods that serve. That of ``helm test`` has ended and stays, so it is never ready."""


@pytest.fixture
def fakes(release: str) -> Iterator[None]:
    """Machines in three zones that take pods and run nothing, where kwok is there."""
    names = [f"fake-{number}" for number in range(MACHINES)]
    room = {"cpu": "16", "memory": "64Gi", "pods": "20"}
    objects = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": {FAKE: "fake"},
                "labels": {
                    "type": "kwok",
                    HOSTNAME: name,
                    ZONE: f"fake-zone-{number % 3}",
                },
            },
            "spec": {"taints": [{"key": FAKE, "value": "fake", "effect": "NoSchedule"}]},
            "status": {"allocatable": room, "capacity": room},
        }
        for number, name in enumerate(names)
    ]
    try:
        kubectl("apply", "-f", "-", text=yaml.safe_dump_all(objects[:1]))
        wait = ("wait", f"node/{names[0]}", "--for=condition=Ready", "--timeout=20s")
        if "condition met" not in kubectl(*wait, check=False):
            pytest.skip("no kwok plays machines")
        kubectl("apply", "-f", "-", text=yaml.safe_dump_all(objects))
        kubectl("wait", "node", "-l", "type=kwok", "--for=condition=Ready", "--timeout=120s")
        yield
    finally:
        try_helm("uninstall", "wide", "--wait")
        kubectl("delete", "node", "-l", "type=kwok", "--wait=false", check=False)


@pytest.mark.usefixtures("fakes")
def test_a_release_of_a_hundred_nodes(tmp_path: Any) -> None:
    place = {
        "nodeSelector": {"type": "kwok"},
        "tolerations": [{"key": FAKE, "operator": "Exists"}],
        "persistence": {"enabled": False},
    }
    file = tmp_path / "values.yaml"
    spread = {"machines": "DoNotSchedule", "zones": "DoNotSchedule"}
    nodes = {**place, "replicas": MACHINES, "spread": spread}
    file.write_text(yaml.safe_dump({"nodes": nodes, "coordinator": place}))
    began_s = time.monotonic()
    helm("install", "wide", str(CHART), *values(), "--values", str(file), *WAIT)
    print(f"{MACHINES} nodes were installed in {time.monotonic() - began_s:.0f} s")
    selector = "app.kubernetes.io/instance=wide,app.kubernetes.io/component=node"
    pods = found("pod", "--selector", selector)["items"]
    assert len(pods) == MACHINES == len({each["spec"]["nodeName"] for each in pods})
    zones = Counter(each["metadata"]["labels"].get(ZONE) for each in pods)
    assert sorted(zones.values()) == [33, 33, 34], zones
    services = found("service", "--selector", selector + ",icecore.io/service=pod")["items"]
    assert len(services) == MACHINES
    assert len(kubectl("get", "secret", "sh.helm.release.v1.wide.v1", "-o", "yaml")) < 512 << 10
    budget = found("poddisruptionbudget", "wide-icecore-node")["status"]
    assert (budget["expectedPods"], budget["disruptionsAllowed"]) == (MACHINES, 1)
    kubectl("drain", "fake-7", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s")
