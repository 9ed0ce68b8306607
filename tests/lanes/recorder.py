"""A pytest plugin that writes each test's begin, outcome and cost as JSON lines.

`tests.lanes.run` loads it (``-p tests.lanes.recorder``) and reads the lines while tests run. Each
process writes a file of its own into the folder that ``ICECORE_RECORDS`` names. The first line is
``{"collected": n, "waiting": [ids of tests that wait for a turn]}``, then come ``{"began": id}``
and ``{"ended": id, "outcome": …, "wall_s": …, "cpu_s": …, "reason": …}``. ``cpu_s`` is that of the
test process and of the children that it has waited for, fixtures included: a module's cluster
counts for the test that ends it.
"""

import json
import os
import resource
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import IO, Any

import pytest

from tests.support.rotation_marks import LEFT_OUT

FOLDER_VARIABLE = "ICECORE_RECORDS"
_RANKS = ("passed", "skipped", "xfailed", "failed")
"""The worst phase of a test is its outcome."""


def _cpu_s() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def outcome_of(report: pytest.TestReport) -> tuple[str, str]:
    """One phase of a test as one of ``_RANKS``, and why it was left out."""
    if hasattr(report, "wasxfail"):
        return ("xfailed" if report.skipped else "failed"), report.wasxfail
    if report.skipped:
        place = report.longrepr
        reason = place[2] if isinstance(place, tuple) else str(place)
        return "skipped", reason.removeprefix("Skipped: ")
    return report.outcome, ""


class Recorder:
    """Writes the lines of one pytest process."""

    def __init__(self, lines: IO[str]) -> None:
        self._lines = lines
        self._outcome, self._reason = "passed", ""

    def _write(self, line: Mapping[str, Any]) -> None:
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        waiting = sorted(session.config.stash.get(LEFT_OUT, set()))
        self._write({"collected": len(session.items), "waiting": waiting})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._outcome, self._reason = "passed", ""
        self._write({"began": item.nodeid})
        wall_s, cpu_s = time.perf_counter(), _cpu_s()
        try:
            return (yield)
        finally:
            line = {
                "ended": item.nodeid,
                "outcome": self._outcome,
                "wall_s": round(time.perf_counter() - wall_s, 3),
                "cpu_s": round(_cpu_s() - cpu_s, 3),
            }
            self._write({**line, "reason": self._reason} if self._reason else line)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome, reason = outcome_of(report)
        if _RANKS.index(outcome) > _RANKS.index(self._outcome):
            self._outcome, self._reason = outcome, reason


def pytest_configure(config: pytest.Config) -> None:
    """Record in the processes that run tests: xdist's controller only hands them out."""
    folder = os.environ.get(FOLDER_VARIABLE)
    is_controller = bool(config.getoption("numprocesses", None)) and not hasattr(
        config, "workerinput"
    )
    if not folder or is_controller:
        return
    path = Path(folder) / f"{os.getpid()}.jsonl"
    recorder = Recorder(path.open("a", encoding="utf-8"))
    config.pluginmanager.register(recorder, "icecore-recorder")
