"""The simulator must notice known mistakes, else it is not testing anything.

Each mutant is one mistake that a real system made, put into the production code; within a few
seeds some check must fail.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from unittest import mock

import pytest

from icecore.model import Segment
from replication.follower import FollowerCore
from replication.producers import Accepted, ProducerTable
from replication.recovery import Decision, FenceReply
from tests.simulation.disk import SimFile, SimFileSystem
from tests.simulation.scenarios import run_seed

Mutant = Callable[[], AbstractContextManager[object]]


def fsync_does_nothing() -> AbstractContextManager[object]:
    """Acks before the data is durable."""
    return mock.patch.object(SimFile, "fdatasync", lambda self: None)


def no_folder_sync() -> AbstractContextManager[object]:
    """New files are not durable in their folder."""
    return mock.patch.object(SimFileSystem, "sync_dir", lambda self, name: None)


def ack_on_leader_alone() -> AbstractContextManager[object]:
    """``acks=all`` does not wait for the in-sync set."""

    def all_end(durable: Mapping[int, int], maximal_isr: Sequence[int]) -> int:
        return max(durable.values())

    return mock.patch("replication.leader_state.all_end", all_end)


def quorum_of_one() -> AbstractContextManager[object]:
    """``acks=quorum`` counts the leader only."""

    def quorum_end(
        durable: Mapping[int, int], replicas: Sequence[int], quorum: int, own: int
    ) -> int:
        return own

    return mock.patch("replication.leader_state.quorum_end", quorum_end)


@contextmanager
def progress_before_fsync() -> Iterator[None]:
    """A follower reports what it has received, not what is durable."""
    receive = FollowerCore._receive

    def eager(self: FollowerCore, *arguments: object) -> None:
        receive(self, *arguments)  # type: ignore[arg-type]
        self.durable_end_offset = self.log_end_offset

    with mock.patch.object(FollowerCore, "_receive", eager):
        yield


def decide_by_one() -> AbstractContextManager[object]:
    """One reply decides the end of a segment, whoever sends it."""

    def may_decide(replies: Mapping[int, FenceReply], segment: Segment) -> Decision | None:
        intact = tuple(node_id for node_id, reply in replies.items() if reply.intact)
        return Decision("S3", intact) if intact else None

    return mock.patch("coordinator.recovery.may_decide", may_decide)


def no_duplicates_known() -> AbstractContextManager[object]:
    """A resent batch is appended again."""
    accept = Accepted()
    return mock.patch.object(ProducerTable, "check", lambda self, *numbers: accept)


def snapshot_skipped() -> AbstractContextManager[object]:
    """A new segment starts without the producers of the ones before."""
    return mock.patch("node.commands.ProducerTable", lambda *snapshot: ProducerTable())


MUTANTS: list[tuple[Mutant, str, range]] = [
    (fsync_does_nothing, "blackout", range(1, 7)),
    (no_folder_sync, "blackout", range(1, 7)),
    (ack_on_leader_alone, "smoke", range(1, 13)),
    (quorum_of_one, "smoke", range(1, 25)),
    (progress_before_fsync, "blackout", range(1, 13)),
    (decide_by_one, "blackout", range(1, 13)),
    (no_duplicates_known, "smoke", range(1, 13)),
    (snapshot_skipped, "smoke", range(1, 13)),
]


@pytest.mark.parametrize(
    ("mutant", "scenario", "seeds"), MUTANTS, ids=[mutant.__name__ for mutant, _, _ in MUTANTS]
)
def test_a_known_mistake_is_noticed(mutant: Mutant, scenario: str, seeds: range) -> None:
    with mutant():
        for seed in seeds:
            if run_seed(scenario, seed).problems:
                return
    pytest.fail(f"{scenario} seeds {seeds} did not notice")
