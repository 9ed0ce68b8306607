"""The chart renders to what Kubernetes and our own servers understand, or says what is wrong.

``make check-helm`` runs it, with Helm 3 and Helm 4 where `make setup-helm` brought them.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from icecore.process.settings import load
from icecore_coordinator.config import CoordinatorSettings
from icecore_node.config import NodeSettings
from tests.deploy.charts import (
    CHART,
    HELMS,
    KUBE_VERSION,
    ROOT,
    rendered,
    run_helm,
    template,
    validate,
)

NODE_PORT = ("--set", "externalAccess.enabled=true,externalAccess.type=NodePort")
BALANCED = ("--set", "externalAccess.enabled=true,externalAccess.domain=events.example.com")
OWN_ETCD = ("--set", "etcd.own.enabled=true")
MONITORED = (
    "--set",
    "metrics.serviceMonitor.enabled=true,metrics.prometheusRule.enabled=true,metrics.dashboard.enabled=true",
)
VALID: dict[str, tuple[str, ...]] = {
    "defaults": (),
    "dev": ("--values", str(CHART / "examples" / "dev.yaml")),
    "production": ("--values", str(CHART / "examples" / "production.yaml")),
    "one node": (
        "--set",
        "nodes.replicas=1,topicDefaults.replication_factor=1,topicDefaults.min_insync_replicas=1",
    ),
    "node ports": NODE_PORT,
    "load balancers": BALANCED,
    "own etcd": OWN_ETCD,
    "standby": (*OWN_ETCD, "--set", "coordinator.replicas=2"),
    "monitored": MONITORED,
    "no disks": (
        "--set",
        "nodes.persistence.enabled=false,coordinator.persistence.enabled=false",
    ),
    "disks and secrets": (
        "--set-json",
        'nodes={"persistence":{"extraDisks":[{"size":"1Ti"},{"size":"2Ti","storageClassName":"x"}]},'
        '"secretMounts":[{"name":"s","mountPath":"/s"}],"extraEnv":[{"name":"A","value":"b"}],'
        '"credentialsSecret":"s3","rack":"r1"}',
    ),
    "network": (
        "--set-json",
        'networkPolicy={"egress":[{"to":[{"ipBlock":{"cidr":"10.0.0.0/8"}}]}]}',
    ),
    "no network policy": ("--set", "networkPolicy.enabled=false"),
}
INVALID: dict[str, tuple[tuple[str, ...], str]] = {
    "more copies than nodes": (
        ("--set", "nodes.replicas=2"),
        "topicDefaults.replication_factor is 3, but nodes.replicas is 2",
    ),
    "more in sync than copies": (
        ("--set", "topicDefaults.min_insync_replicas=4"),
        "no record could be acknowledged",
    ),
    "evictions that stop writes": (
        ("--set", "nodes.podDisruptionBudget.maxUnavailable=2"),
        "evictions may take 1 at a time",
    ),
    "standby without etcd": (("--set", "coordinator.replicas=2"), "give etcd.endpoints"),
    "two etcds": ((*OWN_ETCD, "--set", "etcd.endpoints=a:2379"), "exclude each other"),
    "half TLS": (
        ("--set", "etcd.endpoints=https://a:2379,etcd.tls.clientCertificate=true"),
        "needs etcd.tls.secretName",
    ),
    "half of the members with TLS": (
        ("--set", r"etcd.endpoints=https://a:2379\,b:2379"),
        "all or none",
    ),
    "user without password": (
        ("--set", "etcd.endpoints=a:2379,etcd.auth.user=me"),
        "go together",
    ),
    "no domain": (("--set", "externalAccess.enabled=true"), "needs externalAccess.domain"),
    "too many ports": ((*NODE_PORT, "--set", "nodes.replicas=10"), "9 nodes at most"),
    "settings of the chart": (("--set", "config.node.listen=x"), "config.node.listen is set by"),
    "a typo": (("--set", "nodes.replica=4"), "replica"),
    "a word for a number": (("--set", "nodes.replicas=many"), "replicas"),
    "no such policy": (("--set", "nodes.spread.machines=Maybe"), "spread"),
}


@pytest.mark.parametrize("helm", HELMS)
def test_lint(helm: str) -> None:
    done = run_helm(helm, "lint", str(CHART), "--strict")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("options", VALID.values(), ids=VALID)
def test_kubernetes_knows_all_that_is_rendered(options: tuple[str, ...], helm: str) -> None:
    found = rendered(*options, helm=helm)
    custom = [each for each in found.objects if "monitoring.coreos.com" in each["apiVersion"]]
    validate([each for each in found.objects if each not in custom])
    for name, container in found.containers():
        names = [each["name"] for each in container.get("env", [])]
        assert len(names) == len(set(names)), f"{name}: Helm 4 refuses a variable said twice"


def test_a_field_that_kubernetes_does_not_know_is_noticed() -> None:
    found = rendered()
    (budget, *_) = found.all("PodDisruptionBudget")
    budget["spec"]["maxUnavailabel"] = 1
    with pytest.raises(AssertionError, match="maxUnavailabel"):
        validate([budget])


@pytest.mark.parametrize(("options", "reason"), INVALID.values(), ids=INVALID)
def test_values_that_cannot_work_are_refused_with_the_reason(
    options: tuple[str, ...], reason: str
) -> None:
    done = template(*options)
    assert done.returncode != 0
    assert reason in done.stderr


def test_all_problems_are_told_at_once() -> None:
    told = template("--set", "nodes.replicas=2,coordinator.replicas=2").stderr
    assert "nodes.replicas is 2" in told and "coordinator.replicas is 2" in told


@pytest.mark.parametrize("options", VALID.values(), ids=VALID)
def test_servers_understand_their_settings(
    options: tuple[str, ...], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file and the flags go through the code that reads them, which knows no typo."""
    found = rendered(*options)
    path = tmp_path / "icecore.toml"
    path.write_text(found.get("ConfigMap", "events-icecore-config")["data"]["icecore.toml"])
    coordinator = load(CoordinatorSettings, path, {"data": "x"})
    assert coordinator.topic_defaults.replication_factor in (1, 3)
    for name, container in found.containers():
        if name.endswith("-node"):
            settings = load(NodeSettings, path, _flags(container))
            assert settings.node_id == 2
            assert settings.host == "machine-7" and settings.insecure_bind
            assert settings.leave_wait_ms in (10_000, 60_000)
        elif name.endswith("-coordinator"):
            assert load(CoordinatorSettings, path, _flags(container)).metrics_listen
    said = tomllib.loads(path.read_text())["coordinator"].get("etcd", {})
    assert coordinator.etcd.is_used == bool(said)


def _flags(container: dict[str, Any]) -> dict[str, object]:
    """Settings by the flags of a container, as Kubernetes would fill in its variables."""
    values = {
        "POD_NAME": "events-icecore-node-2",
        "NODE_ID": "2",
        "MACHINE_NAME": "machine-7",
        "MACHINE_ADDRESS": "10.1.2.3",
        "RACK": "zone-a",
    }
    known = {each["name"] for each in container["env"]}
    flags: dict[str, object] = {}
    for text in container["args"][1:]:
        assert set(re.findall(r"\$\((\w+)\)", text)) <= known
        filled = re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], text)
        name, _, value = filled.removeprefix("--").partition("=")
        key = {"metrics": "metrics_listen"}.get(name, name.replace("-", "_"))
        if key != "config":
            flags[key] = value or True
    return flags


def _argument(found: Any, name: str) -> str:
    containers = dict(found.containers())
    (said,) = [
        each for each in containers["events-icecore-node"]["args"] if each.startswith(f"--{name}=")
    ]
    return str(said).partition("=")[2]


def test_addresses_outside_are_those_of_the_services() -> None:
    ports = rendered(*NODE_PORT)
    assert _argument(ports, "advertise") == "$(MACHINE_ADDRESS):3040$(NODE_ID)"
    assert _argument(ports, "native-advertise") == "$(MACHINE_ADDRESS):3050$(NODE_ID)"
    service = ports.get("Service", "events-icecore-node-2-external")
    assert [each["nodePort"] for each in service["spec"]["ports"]] == [30402, 30502]
    balanced = rendered(*BALANCED)
    assert _argument(balanced, "advertise") == "$(POD_NAME).events.example.com:7401"
    service = balanced.get("Service", "events-icecore-node-3-external")
    selector = service["spec"]["selector"]
    assert selector["statefulset.kubernetes.io/pod-name"] == "events-icecore-node-3"


def test_a_pod_is_called_by_a_service_of_its_own() -> None:
    found = rendered("--set", "nodes.replicas=4")
    assert _argument(found, "advertise") == "$(POD_NAME).data.svc.cluster.local:7401"
    at = "events-icecore-coordinator-0.data.svc.cluster.local:7400"
    assert _argument(found, "coordinator") == at
    for name in ("coordinator-0", *(f"node-{each}" for each in (1, 2, 3, 4))):
        spec = found.get("Service", f"events-icecore-{name}")["spec"]
        assert spec["selector"]["statefulset.kubernetes.io/pod-name"] == f"events-icecore-{name}"
        assert spec["publishNotReadyAddresses"] and "clusterIP" not in spec
    assert ("Service", "events-icecore-node-5") not in found._by_name


def test_what_can_never_be_changed_stays_as_it_is() -> None:
    """Kubernetes refuses an upgrade that changes any of these: a new version of the chart or of
    icecore must not be in them."""
    found = rendered(*OWN_ETCD)
    sets = found.all("StatefulSet")
    assert {each["metadata"]["name"] for each in sets} == {
        f"events-icecore-{each}" for each in ("node", "coordinator", "etcd")
    }
    for each in sets:
        spec, name = each["spec"], each["metadata"]["name"]
        assert spec["podManagementPolicy"] == "Parallel"
        assert spec["serviceName"] == name
        assert spec["selector"] == {
            "matchLabels": {
                "app.kubernetes.io/name": "icecore",
                "app.kubernetes.io/instance": "events",
                "app.kubernetes.io/component": name.rpartition("-")[2],
            }
        }
        (claim,) = spec["volumeClaimTemplates"]
        assert claim["metadata"] == {"name": "data"}
        assert spec["persistentVolumeClaimRetentionPolicy"] == {
            "whenDeleted": "Retain",
            "whenScaled": "Retain",
        }
        wanted = spec["selector"]["matchLabels"].items()
        assert wanted <= spec["template"]["metadata"]["labels"].items()
    assert found.get("StatefulSet", "events-icecore-node")["spec"]["ordinals"] == {"start": 1}


def test_pods_are_as_safe_as_the_restricted_standard_wants() -> None:
    for each in rendered(*OWN_ETCD).objects:
        spec = each["spec"]["template"]["spec"] if each["kind"] == "StatefulSet" else None
        spec = each["spec"] if each["kind"] == "Pod" else spec
        if spec is None:
            continue
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False, "variables of services would look like settings"
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_a_pod_has_longer_than_its_clean_leave_takes() -> None:
    found = rendered("--set", "nodes.leaveWaitSeconds=300,nodes.settleWaitSeconds=40")
    pod = found.get("StatefulSet", "events-icecore-node")["spec"]["template"]
    assert pod["spec"]["terminationGracePeriodSeconds"] == 370
    assert "leave_wait_ms = 300000" in str(found.get("ConfigMap", "events-icecore-config"))
    (container,) = pod["spec"]["containers"]
    (*_, hook) = container["lifecycle"]["preStop"]["exec"]["command"]
    assert "cluster health --wait 40 " in hook and hook.endswith("|| true")
    probes = {
        each: container[f"{each}Probe"]["httpGet"]["path"] for each in ("startup", "liveness")
    }
    assert probes == {"startup": "/startupz", "liveness": "/livez"}


def test_a_change_of_settings_restarts_pods_and_a_new_version_of_the_chart_does_not() -> None:
    def pod(*options: str) -> Any:
        return rendered(*options).get("StatefulSet", "events-icecore-node")["spec"]["template"]

    before, after = pod(), pod("--set", "config.node.io_workers=4")
    assert before["metadata"]["annotations"] != after["metadata"]["annotations"]
    assert not [key for key in before["metadata"]["labels"] if "version" in key or "chart" in key]


def test_budgets_and_services_find_their_pods() -> None:
    found = rendered(*OWN_ETCD)
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in found.all("StatefulSet")]
    budgets = found.all("PodDisruptionBudget")
    assert len(budgets) == 3
    for each in budgets:
        wanted = each["spec"]["selector"]["matchLabels"].items()
        assert sum(wanted <= labels.items() for labels in pods) == 1
        assert each["spec"]["maxUnavailable"] == 1
    ports = {
        each["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]: {
            port["name"] for port in each["spec"]["template"]["spec"]["containers"][0]["ports"]
        }
        for each in found.all("StatefulSet")
    }
    for each in found.all("Service"):
        component = each["spec"]["selector"]["app.kubernetes.io/component"]
        assert {port["targetPort"] for port in each["spec"]["ports"]} <= ports[component]


def test_a_release_has_the_chart_as_helm_reads_it(tmp_path: Path) -> None:
    builder = str(ROOT / "scripts" / "build_release.py")
    subprocess.run([sys.executable, builder, str(tmp_path)], check=True, capture_output=True)
    (packed,) = tmp_path.glob("*.tgz")
    options = ("--namespace", "data", "--kube-version", KUBE_VERSION)
    done = run_helm("helm", "template", "events", str(packed), *options)
    assert (done.returncode, done.stdout) == (0, template().stdout)


def test_two_releases_share_no_object() -> None:
    one, other = rendered(*OWN_ETCD), rendered(*OWN_ETCD, release="other")
    names = [{(e["kind"], e["metadata"]["name"]) for e in each.objects} for each in (one, other)]
    assert not names[0] & names[1]
    assert rendered(release="icecore").get("StatefulSet", "icecore-node")


def test_values_that_the_schema_knows_are_those_of_the_chart() -> None:
    """A value that the schema lacks could not be set; one without a default is not documented."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def resolve(node: dict[str, Any]) -> dict[str, Any]:
        name = node.get("$ref", "").rpartition("/")[2]
        return schema["definitions"][name] if name else node

    def compare(path: str, node: dict[str, Any], value: Any) -> None:
        known = resolve(node).get("properties")
        if known is None or not isinstance(value, dict):
            return
        assert set(value) <= set(known), path
        missing = set(known) - set(value) - {"global", "extraDisks"}
        assert not missing, f"{path}: {missing}"
        for key in value:
            compare(f"{path}.{key}", known[key], value[key])

    compare("values", schema, values)
