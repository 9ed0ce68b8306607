"""What holds for all tests of simulated worlds."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Tasks of dead processes never end, and Python says so when a world is dropped (see ``run.hush``),
# in whatever test that happens to be.
DROPPED_WORLDS = (
    "ignore:coroutine .* was never awaited:RuntimeWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let dropped worlds say nothing."""
    for item in items:
        if HERE in item.path.parents:
            for line in DROPPED_WORLDS:
                item.add_marker(pytest.mark.filterwarnings(line))
