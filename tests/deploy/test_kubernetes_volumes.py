"""Volumes that are lost, and volumes of somebody else.

``make test-kubernetes`` runs it.
"""

import json
import time

import pytest
import yaml

from tests.deploy.charts import CHART
from tests.deploy.kubernetes import (
    IMAGE,
    WAIT,
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
    until_ready,
    values,
)

pytestmark = pytest.mark.timeout(1200)


def test_copies_of_a_lost_volume_come_back_by_themselves(release: str) -> None:
    healthy()
    append("lost", 400)
    icecore("topic", "roll", "lost")
    before = found("pvc", f"data-{node(2)}")["metadata"]["uid"]
    kubectl("delete", "pvc", f"data-{node(2)}", "--wait=false")
    kubectl("delete", "pod", node(2))
    until_ready(node(2))
    healthy()
    assert found("pvc", f"data-{node(2)}")["metadata"]["uid"] != before
    sealed = [each for each in listed("segment", "list", "lost") if each["state"] == "sealed"]
    assert len(sealed) >= 6
    assert all(sorted(each["replicas"]) == [1, 2, 3] for each in sealed)
    icecore("cluster", "health")
    assert read("lost") == 400


def test_a_node_with_a_volume_of_another_cluster_says_so_and_does_not_join(release: str) -> None:
    healthy()
    addresses = {each["node_id"]: each["address"] for each in listed("node", "list")}
    alone = {"topicDefaults.replication_factor": 1, "topicDefaults.min_insync_replicas": 1}
    try:
        helm("install", "other", str(CHART), *values(nodes__replicas=1, **alone), *WAIT)
        _copy_of_a_volume(f"data-{node(2)}", "data-other-icecore-node-2")
        helm("upgrade", "other", str(CHART), *values(nodes__replicas=2, **alone))
        _until_said("other-icecore-node-2", "belongs to cluster")
        (status,) = found("pod", "other-icecore-node-2")["status"]["containerStatuses"]
        assert not status["ready"]
        bootstrap = ("icecore", "--bootstrap", "127.0.0.1:7400", "--json", "node", "list")
        nodes = kubectl("exec", "other-icecore-coordinator-0", "--", *bootstrap)
        assert [each["node_id"] for each in json.loads(nodes)["items"]] == [1]
    finally:
        try_helm("uninstall", "other")
        kubectl("delete", "pod", "copier", "--ignore-not-found", check=False)
        for name in ("node-1", "node-2", "coordinator-0"):
            claim = f"data-other-icecore-{name}"
            kubectl("delete", "pvc", claim, "--ignore-not-found", "--wait=false", check=False)
    healthy()
    assert {each["node_id"]: each["address"] for each in listed("node", "list")} == addresses


def _until_said(pod: str, words: str) -> None:
    """Wait until the log of a pod, or of its process before, has these words."""
    deadline = time.monotonic() + 120
    while True:
        said = kubectl("logs", pod, check=False) + kubectl("logs", pod, "--previous", check=False)
        if words in said:
            print(next(line for line in said.splitlines() if words in line))
            return
        assert time.monotonic() < deadline, said
        time.sleep(2)


def _copy_of_a_volume(source: str, target: str) -> None:
    """Make a claim with the files of another one, as who restores a snapshot does."""
    machine = found("pod", node(2))["spec"]["nodeName"]
    size = {"requests": {"storage": "5Gi"}}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": size}
    copier = {
        "name": "copier",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "cp -r /from/. /to/"],
        "volumeMounts": [
            {"name": "from", "mountPath": "/from", "readOnly": True},
            {"name": "to", "mountPath": "/to"},
        ],
    }
    spec = {
        "restartPolicy": "Never",
        "nodeSelector": {"kubernetes.io/hostname": machine},
        "securityContext": {"runAsUser": 10001, "fsGroup": 10001},
        "containers": [copier],
        "volumes": [
            {"name": "from", "persistentVolumeClaim": {"claimName": source}},
            {"name": "to", "persistentVolumeClaim": {"claimName": target}},
        ],
    }
    objects = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": target},
            "spec": claim,
        },
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "copier"}, "spec": spec},
    ]
    kubectl("apply", "-f", "-", text=yaml.safe_dump_all(objects))
    kubectl("wait", "pod/copier", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s")
