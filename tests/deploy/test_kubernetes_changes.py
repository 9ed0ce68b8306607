"""A release is changed as users do: more nodes and fewer, back, away and there again, a second one.

``make test-kubernetes`` runs it.
"""

import json
import time

import pytest

from tests.deploy.charts import CHART
from tests.deploy.kubernetes import (
    RELEASE,
    WAIT,
    Load,
    append,
    found,
    healthy,
    helm,
    icecore,
    kubectl,
    listed,
    node,
    read,
    try_helm,
    values,
)

pytestmark = pytest.mark.timeout(1200)

NOWHERE = ("--set", "nodes.nodeSelector.none=x,coordinator.nodeSelector.none=x")
"""Pods that no machine runs: the objects are what is looked at."""


def test_new_nodes_get_new_segments_and_leave_as_the_document_says(release: str) -> None:
    healthy()
    append("before", 200)
    # Other values would restart the old nodes: the last one that is back is emptier than new ones.
    helm("upgrade", release, str(CHART), "--reuse-values", "--set", "nodes.replicas=5", *WAIT)
    healthy()
    append("after", 200)
    used = {each for segment in listed("segment", "list", "after") for each in segment["replicas"]}
    assert {4, 5} <= used
    for number in (5, 4):
        icecore("node", "drain", str(number), "--wait", "300")
    helm("upgrade", release, str(CHART), "--reuse-values", "--set", "nodes.replicas=3", *WAIT)
    for number in (5, 4):
        kubectl("wait", f"pod/{node(number)}", "--for=delete", "--timeout=120s")
        icecore("node", "remove", str(number), "--yes")
        kubectl("delete", "pvc", f"data-{node(number)}")
    healthy()
    assert {each["node_id"] for each in listed("node", "list")} == {1, 2, 3}
    assert (read("before"), read("after")) == (200, 200)


def test_an_upgrade_to_an_image_that_there_is_not_stops_one_node_and_is_taken_back(
    release: str,
) -> None:
    """It takes the only coordinator, too: what the node has led waits until both are back."""
    healthy()
    revision = json.loads(helm("history", release, "--output", "json"))[-1]["revision"]
    load = Load("rollback", 150)
    try:
        helm("upgrade", release, str(CHART), *values(image__tag="missing"))
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            # Ready counts for less here: without a coordinator no node is, and all serve.
            assert sum(map(_runs, (1, 2, 3))) >= 2, "a second node was taken"
            time.sleep(2)
        assert sum(map(_runs, (1, 2, 3))) == 2, "nothing was upgraded"
    finally:
        helm("rollback", release, str(revision), *WAIT)
    load.check(slowest_s=120)
    healthy()


def _runs(number: int) -> bool:
    """Return whether the process of a node runs."""
    pods = found("pod", node(number), "--ignore-not-found") or {"status": {}}
    return any("running" in each["state"] for each in pods["status"].get("containerStatuses", ()))


def test_a_release_that_went_comes_back_with_its_records(release: str) -> None:
    healthy()
    append("kept", 300)
    helm("uninstall", release, "--wait", "--timeout", "300s")
    # The pod of `helm test` stays, so that its log can be read.
    selector = f"app.kubernetes.io/instance={release},app.kubernetes.io/component!=test"
    kubectl("wait", "pod", "--selector", selector, "--for=delete", "--timeout=120s")
    claims = {each["metadata"]["name"] for each in found("pvc")["items"]}
    assert {f"data-{node(number)}" for number in (1, 2, 3)} < claims
    helm("install", release, str(CHART), *values(), *WAIT)
    healthy()
    assert read("kept") == 300


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"nodes__replicas": 2}, "nodes.replicas is 2"),
        ({"nodes__persistence__storageClassName": "none"}, "which the cluster does not have"),
        ({"etcd__tls__clientCertificate": "true"}, "needs etcd.tls.secretName"),
        ({"fullnameOverride": f"{RELEASE}-icecore"}, "cannot be imported into the current release"),
    ],
    ids=("more copies than nodes", "no such class", "half TLS", "names of another release"),
)
def test_what_cannot_work_is_refused_at_once_with_the_reason(
    changes: dict[str, object], reason: str, release: str
) -> None:
    done = try_helm("install", "other", str(CHART), *values(**changes))
    try:
        assert done.returncode != 0 and reason in done.stderr
    finally:
        try_helm("uninstall", "other")
    assert not [each for each in found("pod")["items"] if "other" in each["metadata"]["name"]]


def test_two_releases_never_share_keys_in_etcd(release: str) -> None:
    shared = (*values(etcd__endpoints="etcd:2379", etcd__prefix="mine/"), *NOWHERE)
    try:
        helm("install", "one", str(CHART), *shared)
        done = try_helm("install", "two", str(CHART), *shared)
        assert done.returncode != 0
        assert "etcd.prefix is mine/, which release one of namespace" in done.stderr
        helm("upgrade", "one", str(CHART), *shared)
        own = (*values(etcd__endpoints="etcd:2379", etcd__prefix="other/"), *NOWHERE)
        helm("install", "two", str(CHART), *own)
        done = try_helm("upgrade", "two", str(CHART), *shared)
        assert done.returncode != 0 and "Choose another prefix" in done.stderr
    finally:
        for name in ("one", "two"):
            try_helm("uninstall", name)
