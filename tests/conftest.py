"""What every kind of test shares: the hypothesis profile and the marker of cluster tests."""

from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: on a shared two-core machine a slow example is no bug. A failing example prints the
# blob that replays it.
settings.register_profile("icecore", deadline=None, print_blob=True)
settings.load_profile("icecore")

CLUSTER_TESTS = Path(__file__).parent / "cluster"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts processes, so that `-m 'not cluster'` leaves it out."""
    for item in items:
        if CLUSTER_TESTS in item.path.parents:
            item.add_marker(pytest.mark.cluster)
