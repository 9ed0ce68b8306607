"""The tests that a run left out, in the last lines of its output, with what brings them.

A test that can't run here is skipped as ever, by a mark or by ``pytest.skip``. ``reason`` makes its
reason where a command brings what is missing; any other reason is shown as it is. The controlling
process reads the reasons in the reports, so worker processes change nothing.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

START = "left out: "
_NEEDS = "needs "
_LIBRARY = re.compile(r"could not import '(\w+)'")
_BROUGHT_BY = {
    "pyspark": "make setup-spark",
    "matplotlib": "make setup-bench",
    "sphinx": "make setup-docs",
}
"""Libraries that ``pytest.importorskip`` asks for."""


def reason(what: str, brings: str) -> str:
    """For a skip: it needs this, and that brings it.

    Args:
        what: A program or a library, such as ``MinIO``.
        brings: The command or the setting that brings it, such as ``make setup-minio``.
    """
    return f"{_NEEDS}{what}: {brings} brings it"


def reason_of(report: Any) -> str:
    """Return why a test, or a whole file, was skipped."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def lines(reasons: Iterable[str]) -> list[str]:
    """One for each reason, with its number of tests; the most frequent comes first."""
    return [_line(why, count) for why, count in Counter(map(_plain, reasons)).most_common()]


def _plain(why: str) -> str:
    """Names what brings a library that ``pytest.importorskip`` has not found."""
    found = _LIBRARY.search(why)
    if found is None or found[1] not in _BROUGHT_BY:
        return why
    return reason(found[1], _BROUGHT_BY[found[1]])


def _line(why: str, count: int) -> str:
    tests = "1 test" if count == 1 else f"{count} tests"
    if why.startswith(_NEEDS):
        return f"{tests} of {why.removeprefix(_NEEDS)}"
    return f"{tests}: {why}"


def write_lines(reporter: pytest.TerminalReporter) -> None:
    """For ``pytest_terminal_summary``."""
    for line in lines(map(reason_of, reporter.stats.get("skipped", ()))):
        reporter.write_line(START + line)
