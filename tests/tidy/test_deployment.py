"""Files of a deployment agree with the project: versions, locked libraries, names of metrics."""

import json
import re
import tomllib
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tidy.tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = ROOT / "docker" / "requirements.lock"
IMAGE_EXTRAS = ("server", "tier")
IMAGE_PYTHON = "3.13"
_PIN = re.compile(
    r"^([\w.-]+)==(\S+)( ;.*)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.M
)


def wanted(*extras: str) -> list[Requirement]:
    """Direct requirements of an install with these extras, those of extras of extras included."""
    found = [Requirement(each) for each in PROJECT["dependencies"]]
    for extra in extras:
        for text in PROJECT["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if requirement.name == PROJECT["name"]:
                found += wanted(*requirement.extras)
            else:
                found.append(requirement)
    return found


def test_the_lock_of_the_image_pins_each_library_with_its_digests() -> None:
    text = LOCK.read_text()
    pins = {canonicalize_name(name): version for name, version, _, _ in _PIN.findall(text)}
    assert len(pins) == text.count("==") >= 20
    assert _PIN.sub("", text).strip() == ""
    for each in wanted(*IMAGE_EXTRAS):
        if each.marker is None or each.marker.evaluate({"python_version": IMAGE_PYTHON}):
            version = pins[canonicalize_name(each.name)]
            assert each.specifier.contains(version), f"{each} is locked at {version}: `make lock`"


# --- metrics, alerts, dashboard -------------------------------------------------------------------

REFERENCE = (ROOT / "docs" / "reference" / "metrics.md").read_text()
METRICS: dict[str, str] = dict(re.findall(r"^\| `(icecore_\w+)` \| (\w+) \|", REFERENCE, re.M))
CHART = ROOT / "helm" / "icecore"
ALERTS = (CHART / "files" / "alerts.yaml").read_text()
DASHBOARD = json.loads((CHART / "files" / "dashboard.json").read_text())
MONITOR = (ROOT / "docs" / "operate" / "monitor.md").read_text()
_NAME = re.compile(r"\bicecore_[a-z0-9_]+")
_SERIES = ("_bucket", "_sum", "_count")


def unknown_metrics(text: str) -> Iterator[str]:
    """Names of metrics in an expression that no server shows."""
    for name in _NAME.findall(text):
        series = next((each for each in _SERIES if name.endswith(each)), "")
        kind = METRICS.get(name.removesuffix(series) if series else name)
        if kind is None or (series and kind != "histogram") or (kind == "histogram" and not series):
            yield name


def expressions() -> list[str]:
    """Every expression of the dashboard, with the query of its variable."""
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [*found, DASHBOARD["templating"]["list"][1]["query"]["query"]]


def test_alerts_and_dashboard_ask_for_metrics_that_there_are() -> None:
    assert len(METRICS) > 60 and ALERTS.count("expr:") > 10 and len(expressions()) > 20
    assert not list(unknown_metrics("\n".join([*re.findall("expr: (.*)", ALERTS), *expressions()])))
    assert list(unknown_metrics("rate(icecore_fetch_byte_total[1m])"))
    assert list(unknown_metrics("icecore_group_seconds")), "a histogram has no series of that name"


def test_each_alert_has_an_entry_in_the_runbook_and_each_entry_an_alert() -> None:
    names = re.findall(r"- alert: (\w+)", ALERTS)
    assert re.findall(r"^### (Icecore\w+)$", MONITOR, re.M) == names
    links = re.findall(r"runbook: (\S+)", ALERTS)
    assert links == [f"docs/operate/monitor.md#{name.lower()}" for name in names]


def test_metrics_are_named_as_prometheus_says() -> None:
    """Counters end in ``_total``; seconds and bytes are the units of time and size."""
    wrong = [
        name
        for name, kind in METRICS.items()
        if (kind == "counter") != name.endswith("_total")
        or re.search(r"_(ms|millis|minutes|hours|kb|mb|mib|percent)(_|$)", name)
        or (kind == "histogram" and not name.endswith(("_seconds", "_bytes", "_appends")))
    ]
    assert not wrong


# --- the chart ------------------------------------------------------------------------------------


def test_chart_has_the_version_of_the_project() -> None:
    about = (CHART / "Chart.yaml").read_text()
    assert f"\nversion: {PROJECT['version']}\n" in about
    assert f'\nappVersion: "{PROJECT["version"]}"\n' in about
