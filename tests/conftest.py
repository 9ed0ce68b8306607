"""What every kind of test shares: the hypothesis profile, the loop of servers, cluster tests."""

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import uvloop
from hypothesis import settings

# No deadline: on a shared two-core machine a slow example is no bug. A failing example prints the
# blob that replays it.
settings.register_profile("icecore", deadline=None, print_blob=True)
settings.load_profile("icecore")

# Tests start hundreds of Python processes: each would compile three hundred files anew where the
# environment forbids to keep what was compiled beside them, as CI's does.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(__file__).parents[1] / "build" / "pycache"))

CLUSTER_TESTS = Path(__file__).parent / "cluster"
SERVER_TESTS = tuple(Path(__file__).parent / "unit" / name for name in ("node", "coordinator"))


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Servers run on uvloop, which is another loop than asyncio's in small things; so do their
    tests."""
    if any(folder in item.path.parents for folder in SERVER_TESTS):
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts processes, so that `-m 'not cluster'` leaves it out."""
    for item in items:
        if CLUSTER_TESTS in item.path.parents:
            item.add_marker(pytest.mark.cluster)
