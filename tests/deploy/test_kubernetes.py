"""The chart in a real Kubernetes: install, use, lose pods, upgrade under load. Nothing is lost.

``make test-kubernetes`` runs it; ``tests/deploy/kubernetes.py`` says what it needs. It takes some
minutes.
"""

import json
import time

import pytest

from tests.deploy.charts import CHART
from tests.deploy.kubernetes import (
    WAIT,
    Load,
    found,
    healthy,
    helm,
    kubectl,
    listed,
    namespace,
    node,
    until_ready,
    values,
)

pytestmark = pytest.mark.timeout(1200)


def test_a_release_is_used_from_a_pod(release: str) -> None:
    helm("test", release)
    said = kubectl("logs", f"{release}-icecore-test")
    assert "100 records were acknowledged and read; fewest durable copies: 3" in said


def test_nodes_are_the_numbers_of_their_pods_on_the_machines_of_their_pods(release: str) -> None:
    healthy()
    known = {each["node_id"]: each for each in listed("node", "list")}
    for number in (1, 2, 3):
        machine = found("pod", node(number))["spec"]["nodeName"]
        assert known[number]["host"] == machine
        assert known[number]["address"].startswith(node(number) + ".")


def test_pods_that_are_deleted_and_killed_cost_nothing_that_was_acknowledged(release: str) -> None:
    healthy()
    load = Load("deletions", 60)
    kubectl("delete", "pod", node(2))
    kubectl("delete", "pod", f"{release}-icecore-coordinator-0")
    kubectl("delete", "pod", node(3), "--force", "--grace-period=0")
    load.check()
    healthy()


def test_an_upgrade_under_load_stops_nobody(release: str) -> None:
    healthy()
    load = Load("upgrade", 150)
    began_s = time.monotonic()
    changed = values(config__node__fetch_bytes_max="4MiB")
    helm("upgrade", release, str(CHART), *changed, *WAIT)
    print(f"the upgrade took {time.monotonic() - began_s:.0f} s")
    load.check()
    healthy()


def test_evictions_take_one_node_at_a_time(release: str) -> None:
    healthy()
    for number in (1, 2):
        name = node(number)
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        path = f"/api/v1/namespaces/{namespace()}/pods/{name}/eviction"
        said = kubectl("create", "--raw", path, "-f", "-", text=json.dumps(eviction), check=False)
        assert ("disruption budget" in said) == (number == 2), said
    kubectl("wait", f"pod/{node(1)}", "--for=delete", "--timeout=120s")
    until_ready(node(1))
    healthy()
