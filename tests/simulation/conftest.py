"""Settings and fixtures of all tests of simulated worlds."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Tasks of dead processes never end, and Python says so when a world is dropped (see ``run.hush``),
# in whatever test that happens to be.
DROPPED_WORLDS = (
    "ignore:coroutine .* was never awaited:RuntimeWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


TIMEOUT_S = 900
"""A test that hangs ends after so long. The usual limit is too near to the largest worlds on a busy
machine, and what it raises in the middle of a world looks like a mistake of that world."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let dropped worlds say nothing, and give worlds time."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
            for line in DROPPED_WORLDS:
                item.add_marker(pytest.mark.filterwarnings(line))
