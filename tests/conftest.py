"""Every kind of test shares the rotation, the hypothesis profile, and marks by folder."""

import asyncio
import gc
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import settings

from tests.support import left_out, rotation, rotation_marks
from tests.support.fair_loop import FairLoop, fair_clock  # noqa: F401 - for all tests
from tests.support.s3_servers import minio, moto, s3_server  # noqa: F401 - fixtures for all tests

# Tests start hundreds of Python processes: each would compile three hundred files anew where the
# environment forbids to keep what was compiled beside them, as CI's does.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(__file__).parents[1] / "build" / "pycache"))

CLUSTER_TESTS = Path(__file__).parent / "cluster"
ID_CHARS_MAX = 60
SERVER_TESTS = tuple(Path(__file__).parent / "unit" / name for name in ("node", "coordinator"))


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Servers run on uvloop, which is another loop than asyncio's in small things; so do their
    tests. All others run on asyncio's own with a clock that a busy machine does not hurry."""
    if any(folder in item.path.parents for folder in SERVER_TESTS):
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": FairLoop}


def pytest_make_parametrize_id(val: object) -> str | None:
    """A value of kilobytes is no name of a test: progress shows names once a minute."""
    if isinstance(val, str | bytes) and len(val) > ID_CHARS_MAX:
        return f"{type(val).__name__} of {len(val)}"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Examples follow from the number of the rotation, so that it repeats a red run.

    No deadline: on a shared two-core machine a slow example is no bug. A failing example prints the
    blob that replays it.
    """
    try:
        number = rotation.current().number
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    settings.register_profile(
        "icecore",
        deadline=None,
        print_blob=True,
        derandomize=False,
        max_examples=rotation.examples(100),
    )
    settings.load_profile("icecore")
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(number)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark cluster tests, so that `-m 'not cluster'` leaves them out; leave out what waits."""
    for item in items:
        if CLUSTER_TESTS in item.path.parents:
            item.add_marker(pytest.mark.cluster)
    rotation_marks.leave_out(config, items)


def pytest_collection_finish() -> None:
    """Freeze all collected objects: they live for the whole run, so the collector can skip them."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker process tells what it left out."""
    rotation_marks.hand_over(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a worker process left out; one that crashed tells nothing."""
    rotation_marks.take_over(node.config, getattr(node, "workeroutput", {}))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Iterator[None]:
    """Nothing is left out in silence: the last lines before the counts say it."""
    yield
    for line in rotation_marks.summary(config):
        terminalreporter.write_line(line)
    left_out.write_lines(terminalreporter)
