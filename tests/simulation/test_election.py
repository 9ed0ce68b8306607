"""R121, R122: Coordinators that stand by for each other, in simulated worlds of their own."""

import pytest

from tests.simulation.election import ElectionWorld, run_election
from tests.support import rotation


@pytest.mark.parametrize("seed", rotation.fresh_seeds("simulation: election seeds", 3, 12))
def test_one_acts_at_a_time_and_knows_what_is_stored(seed: int) -> None:
    assert run_election(seed) == []


def test_much_happens_in_a_world() -> None:
    """Else its silence would prove nothing."""
    worlds = [ElectionWorld(seed) for seed in (1, 2)]
    for world in worlds:
        world.run()
    assert sum(world.followed for world in worlds) > 5
    assert all(sum(member.acts for member in world.members) > 100 for world in worlds)


def test_a_seed_decides_everything() -> None:
    first, again = ElectionWorld(3), ElectionWorld(3)
    assert (first.run(), first.loop.trace_hash()) == (again.run(), again.loop.trace_hash())
