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
