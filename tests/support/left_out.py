"""The tests that a run left out, in the last lines of its output, with what brings them.

A test that can't run here is skipped as ever, by a mark or by ``pytest.skip``. ``reason`` makes its
reason where a command brings what is missing; any other reason is shown as it is. The controlling
process reads the reasons in the reports, so worker processes change nothing.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

START = "left out: "
_NEEDS = "needs "


def reason(what: str, brings: str) -> str:
    """For a skip: it needs this, and that brings it.

    Args:
        what: A program or a library, such as ``MinIO``.
        brings: What somebody does to get it, such as ``make setup-minio``.
    """
    return f"{_NEEDS}{what}: {brings} brings it"


def lines(reports: Iterable[Any]) -> list[str]:
    """One for each reason of these reports of skipped tests, the most frequent first."""
    found = Counter(_reason(each) for each in reports)
    return [_line(why, count) for why, count in found.most_common()]


def _reason(report: Any) -> str:
    """Of a test, or of a file that was skipped whole."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _line(why: str, count: int) -> str:
    tests = "1 test" if count == 1 else f"{count} tests"
    if why.startswith(_NEEDS):
        return f"{START}{tests} of {why.removeprefix(_NEEDS)}"
    return f"{START}{tests}: {why}"


def write_lines(reporter: pytest.TerminalReporter) -> None:
    """For ``pytest_terminal_summary``."""
    for line in lines(reporter.stats.get("skipped", ())):
        reporter.write_line(line)
