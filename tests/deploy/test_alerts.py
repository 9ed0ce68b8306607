"""Alerts are raised by their trouble, when it has lasted, and by nothing else; promtool says so."""

import subprocess

from tests.deploy.charts import CHART, ROOT, program


def test_rules_are_well_formed() -> None:
    _promtool("check", "rules", str(CHART / "files" / "alerts.yaml"))


def test_rules_raise_what_they_should() -> None:
    _promtool("test", "rules", str(ROOT / "tests" / "deploy" / "alerts.yaml"))


def _promtool(*arguments: str) -> None:
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
