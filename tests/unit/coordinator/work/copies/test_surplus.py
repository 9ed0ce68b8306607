"""A copy too many goes once the nodes that keep theirs are up for good."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, cast

import pytest

from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.decisions.segment_changes import add_sealed_replica
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, updated_segment
from icecore_coordinator.timing import Timing
from icecore_coordinator.work.copies import surplus as module
from icecore_coordinator.work.copies.surplus import SurplusCopies
from icecore_coordinator.work.worker_ports import WorkerPorts
from icecore_replication.digest import FullDigest
from tests.support.cluster_states import DIGEST, commit, registered, roll, segment
from tests.unit.coordinator.work.copies.test_auditor import Audited

WAIT_MS = 10_000


class Ledger:
    """Decides at once."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state

    async def decide_each(
        self, items: Sequence[int], decision: Callable[[ClusterState, int], Change]
    ) -> list[Change]:
        return [commit(self.state, decision(self.state, each)) for each in items]


class Cluster(Audited):
    """Three nodes and a fourth, which has got copies of what is sealed."""

    def __init__(self, segments: int = 1) -> None:
        super().__init__()
        unused = cast(Any, None)
        ports = WorkerPorts(
            ledger=cast(Any, Ledger(self.state)),
            calls=unused,
            live=self.live,
            heard=self.heard,
            copies=self.copies,
            alerts=self.alerts,
            clock=self.clock,
            timing=Timing(roll_up_wait_ms=WAIT_MS),
        )
        self.copying: set[tuple[int, int]] = set()
        self.surplus = SurplusCopies(ports, lambda *copy: copy in self.copying)
        commit(self.state, Change((registered(4, 14),)))
        self.streams[4] = self.connect(4)
        self.sealed = [roll(self.state) for _ in range(segments)]
        for each in self.sealed:
            commit(self.state, add_sealed_replica(self.state, each, 4, 14, DIGEST))
            agreed = updated_segment(
                self.state.segments[each], {"full_digest": FullDigest().digest()}
            )
            commit(self.state, Change((agreed,)))

    async def dropped(self) -> list[int]:
        """Return the segments of which a copy goes, after one look."""
        before = set(self.state.dropping)
        await self.surplus.look()
        return [each for each in self.state.dropping if each not in before]

    def wait(self) -> None:
        for _ in range(WAIT_MS // 1000):
            self.pass_ms(1_000, *self.streams.values())


async def test_it_goes_once_all_are_up_for_a_while() -> None:
    cluster = Cluster()
    assert await cluster.dropped() == []
    cluster.wait()
    assert await cluster.dropped() == cluster.sealed
    assert len(segment(cluster.state).replicas) == 3


@pytest.mark.parametrize("lost", [1, 4])
async def test_a_node_that_is_down_keeps_all_others(lost: int) -> None:
    cluster = Cluster()
    cluster.wait()
    cluster.kill(lost)
    assert await cluster.dropped() == []


async def test_a_damaged_copy_keeps_all_others() -> None:
    cluster = Cluster()
    cluster.wait()
    heartbeat = pb.HeartbeatRequest(unknown_segment_ids=cluster.sealed)
    cluster.sessions.heartbeat(cluster.streams[2], heartbeat)
    assert await cluster.dropped() == []


async def test_a_node_that_is_away_keeps_its_copy_when_another_one_is_damaged() -> None:
    """Else it would drop a good one once it is back, and there were too few."""
    cluster = Cluster()
    cluster.wait()
    (segment_id,) = await cluster.dropped()
    (dropping,) = segment(cluster.state).surplus
    cluster.kill(dropping)
    await cluster.surplus.look()
    assert segment(cluster.state).surplus == (dropping,), "there are enough without it"
    other = segment(cluster.state).replicas[0]
    heartbeat = pb.HeartbeatRequest(unknown_segment_ids=cluster.sealed)
    cluster.sessions.heartbeat(cluster.streams[other], heartbeat)
    cluster.copying.add((dropping, segment_id))
    await cluster.surplus.look()
    assert segment(cluster.state).surplus == (dropping,), "an older copy must not count"
    cluster.copying.clear()
    await cluster.surplus.look()
    assert segment(cluster.state).surplus == ()
    assert segment(cluster.state).replicas.count(dropping) == 0


async def test_a_node_that_is_away_keeps_its_copy_when_another_node_is_lost() -> None:
    cluster = Cluster()
    cluster.wait()
    await cluster.dropped()
    (dropping,) = segment(cluster.state).surplus
    cluster.kill(dropping)
    cluster.kill(segment(cluster.state).replicas[0])
    await cluster.surplus.look()
    assert segment(cluster.state).surplus, "it may be back in a moment"
    up = [stream for node, stream in cluster.streams.items() if cluster.live.is_live(node)]
    for _ in range(int(Timing().lost_replica_grace_ms / 1000) + 1):
        cluster.pass_ms(1_000, *up)
    await cluster.surplus.look()
    assert not segment(cluster.state).surplus


async def test_very_many_go_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DROPS_PER_LOOK", 2)
    cluster = Cluster(segments=5)
    cluster.wait()
    found = [await cluster.dropped() for _ in range(6)]
    assert max(map(len, found)) == 2
    assert sorted(chain(*found)) == cluster.sealed
