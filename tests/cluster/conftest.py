"""Fixtures of tests that run real processes, and which of these tests one process runs together.

``shared_cluster`` is for tests that kill nothing and look at their own topics only,
``healed_cluster`` for those that kill processes which come back, ``own_cluster`` for damage and for
tests that stop everything anyway.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from icecore.dev import LocalCluster
from tests.support.cluster_report import report
from tests.support.clusters import LEASE_MS, NODES, Healed, check_logs, end, running
from tests.support.fast import default_waits, fast_waits  # noqa: F401 - fixtures for all tests here
from tests.support.forked import servers_are_forked

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group for ``-n … --dist loadgroup``: users of the shared cluster, or of a module's fixture.

    In two processes such a fixture would be made twice.
    """
    for item in items:
        if HERE not in item.path.parents or item.get_closest_marker("xdist_group"):
            continue
        names = getattr(item, "fixturenames", ())
        if group := next((each for each in ("shared", "healed") if f"{each}_cluster" in names), ""):
            item.add_marker(pytest.mark.xdist_group(group))
        elif _has_module_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail where groups were asked for and xdist forgot them, as it did with pytest 9.2."""
    if not getattr(session.config.option, "loadgroup", False):
        return
    for item in session.items:
        group = item.get_closest_marker("xdist_group")
        if group is not None and "@" not in item.nodeid:
            raise pytest.UsageError(
                f"pytest-xdist forgets the group of {item.nodeid}: `make setup`"
            )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show the state of a fixture's cluster beside the failure of its test."""
    outcome = yield
    found = outcome.get_result()  # type: ignore[attr-defined]
    if found.when != "call" or not found.failed:
        return
    for value in getattr(item, "funcargs", {}).values():
        if isinstance(value, LocalCluster):
            found.sections.append(("Cluster", report(value)))


def _has_module_fixture(item: pytest.Item) -> bool:
    definitions = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009 - pytest has no other way
    return any(each.scope == "module" for found in definitions.values() for each in found)


@pytest.fixture(scope="session", autouse=True)
def _servers_make_no_mistakes() -> Iterator[None]:
    """Each ``with LocalCluster(…)`` ends quickly, and fails when a loop caught an exception."""

    def leave(cluster: LocalCluster, *error: Any) -> None:
        if error[0] is not None:
            print(report(cluster))
        end(cluster)
        if error[0] is None:
            check_logs(cluster)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalCluster, "__exit__", leave)
        yield


@pytest.fixture(scope="session", autouse=True)
def _forked_servers() -> Iterator[None]:
    with servers_are_forked():
        yield


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Shared by all: they use topics of their own, kill nothing and count nothing of the whole."""
    with running(LocalCluster(tmp_path_factory.mktemp("shared"), NODES)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _healed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Healed]:
    settings = {"lease_ms": LEASE_MS}
    healed = Healed(tmp_path_factory.mktemp("healed"), coordinator_settings=settings)
    yield healed
    healed.end()


@pytest.fixture
def healed_cluster(_healed: Healed) -> Iterator[LocalCluster]:
    """For tests that kill or pause processes: whole and without topics when a test begins."""
    yield _healed.get()
    _healed.heal()


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """For tests that damage files, or stop everything anyway: short leases."""
    cluster = LocalCluster(tmp_path / "cluster", NODES, coordinator_settings={"lease_ms": LEASE_MS})
    with running(cluster):
        yield cluster
