"""The short form of ``make chaos``: real processes broken under load, and a judged history.

One round each of a few scenarios; the rest, and more of each, is for ``make chaos``.
"""

from pathlib import Path

import pytest

from icecore.model import Acks
from tests.chaos.links import Links
from tests.chaos.network import Network, why_impossible
from tests.chaos.proxies import Proxies
from tests.chaos.run import run_one
from tests.support.etcd import NEEDS_MEMBERS

SECONDS = 3.0
"""Less than any round takes: every scenario makes exactly one."""


@pytest.fixture(scope="module")
def links() -> type[Links]:
    return Proxies if why_impossible() else Network


@pytest.mark.xdist_group("root")  # the next free network is one at a time
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["kill_leader", "minority", "flip_sealed"])
def test_one_round_loses_nothing(name: str, links: type[Links], tmp_path: Path) -> None:
    report = run_one(name, tmp_path / name, SECONDS, links)
    assert not report.problems
    assert report.faults > 0 and report.acked[Acks.ALL] > 0


@NEEDS_MEMBERS
@pytest.mark.xdist_group("root")
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("etcd_partition", marks=pytest.mark.every(3)),
        pytest.param("coordinator_kill", marks=pytest.mark.every(3, turn=1)),
        pytest.param("take_over_in_import", marks=pytest.mark.every(3, turn=2)),
    ],
)
def test_the_control_plane_breaks_and_no_producer_hears_of_it(
    name: str, links: type[Links], tmp_path: Path
) -> None:
    """Three coordinators on an etcd of three members: one, a majority and all of them go."""
    report = run_one(name, tmp_path / name, SECONDS, links)
    assert not report.skipped and not report.problems
    assert report.faults > 0 and report.acked[Acks.ALL] > 0
