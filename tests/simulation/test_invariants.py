"""A core that breaks an invariant inside of a node: its story is told, and the node ends."""

from typing import Any

import pytest

from icecore_node.context import NodeContext
from icecore_replication.checked import Checked
from icecore_replication.leader import LeaderCore
from tests.simulation.scenarios import run_seed

SEED = 3


@pytest.mark.parametrize("check_every_steps", [1, 16])
def test_a_node_ends_when_a_core_of_it_is_wrong(
    monkeypatch: pytest.MonkeyPatch, check_every_steps: int
) -> None:
    """Once in a world, a leader believes that a follower has what was never written."""
    advance, credulous = LeaderCore._advance, list[int]()

    def believe(self: LeaderCore) -> None:
        advance(self)
        if not credulous and self.acked_end > self.segment.base_offset:
            [node_id, *_] = set(self.segment.replicas) - {self.node_id}
            credulous.append(node_id)
            self._in_sync.followers.durable[node_id] = self.log_end_offset + 1_000

    def checked(_: NodeContext, core: Any) -> Checked[Any]:
        return Checked(core, check_every_steps=check_every_steps)

    monkeypatch.setattr(LeaderCore, "_advance", believe)
    monkeypatch.setattr(NodeContext, "checked", checked)
    problems = run_seed("smoke", SEED).problems
    assert credulous
    # Not always the first: with more steps between checks, others may notice before the node does.
    assert any("a follower is ahead of the leader" in one and "\ntook " in one for one in problems)
    assert any(" died of InvariantError" in each for each in problems)
