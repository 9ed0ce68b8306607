"""Helm as tests call it, and what a chart renders to."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "icecore"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "icecore"
KUBE_VERSION = "1.36.0"
HELMS = ("helm", "helm4")


def program(name: str) -> str:
    """Return the path of a program of the cache, or else of PATH; skip the test without it."""
    found = CACHE / name if (CACHE / name).exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name}: `make setup-helm` brings it")
    return str(found)


@dataclass(frozen=True)
class Rendered:
    """All objects of one release."""

    objects: list[dict[str, Any]]
    notes: str = ""
    _by_name: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in self.objects:
            key = (each["kind"], each["metadata"]["name"])
            assert key not in self._by_name, f"two objects are {key}"
            self._by_name[key] = each

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """One object."""
        return self._by_name[kind, name]

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Objects of one kind."""
        return [each for each in self.objects if each["kind"] == kind]

    def containers(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each container, with the name of what it belongs to."""
        for each in self.objects:
            spec = each["spec"]["template"]["spec"] if each["kind"] == "StatefulSet" else None
            spec = each["spec"] if each["kind"] == "Pod" else spec
            for container in (spec or {}).get("containers", []):
                yield each["metadata"]["name"], container


def run_helm(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Helm; the caller looks at its status."""
    return subprocess.run(
        [program(name), *arguments], capture_output=True, text=True, timeout=60, cwd=ROOT
    )


def template(
    *options: str, helm: str = "helm", release: str = "events", namespace: str = "data"
) -> subprocess.CompletedProcess[str]:
    """Render the chart without a cluster."""
    return run_helm(
        helm,
        *("template", release, str(CHART), "--namespace", namespace),
        *("--kube-version", KUBE_VERSION, *options),
    )


def rendered(*options: str, helm: str = "helm", release: str = "events") -> Rendered:
    """Render the chart and read it."""
    done = template(*options, helm=helm, release=release)
    assert done.returncode == 0, done.stderr
    return Rendered([each for each in yaml.safe_load_all(done.stdout) if each])


def validate(objects: list[dict[str, Any]]) -> None:
    """Compare objects with the schemas of Kubernetes; nothing is in them that it does not know.

    It is done by a process of its own: the libraries that do it are not those of the tests.
    """
    folder = CACHE / "kubernetes-validate"
    if not folder.exists():
        pytest.skip("there is no kubernetes-validate: `make setup-helm` brings it")
    text = yaml.safe_dump_all(objects)
    done = subprocess.run(
        [sys.executable, "-c", _VALIDATE, KUBE_VERSION.rpartition(".")[0]],
        input=text,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert done.returncode == 0, done.stdout + done.stderr


_VALIDATE = """
import sys, yaml, kubernetes_validate
for each in yaml.safe_load_all(sys.stdin):
    try:
        kubernetes_validate.validate(each, sys.argv[1], strict=True)
    except kubernetes_validate.ValidationError as error:
        where = f"{each['kind']} {each['metadata']['name']}"
        sys.exit(f"{where}: {error.message} at {list(error.path)}")
"""
