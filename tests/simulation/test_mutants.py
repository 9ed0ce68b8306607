"""The simulator must notice known mistakes, else it is not testing anything.

Each mutant is one mistake that a real system made, put into the production code; within a few
seeds some check must fail.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from unittest import mock

import pytest

from replication.follower import FollowerCore
from replication.producers import Accepted, ProducerTable
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


def no_duplicates_known() -> AbstractContextManager[object]:
    """A resent batch is appended again."""
    accept = Accepted()
    return mock.patch.object(ProducerTable, "check", lambda self, *numbers: accept)


def snapshot_skipped() -> AbstractContextManager[object]:
    """A new segment starts without the producers of the ones before."""
    return mock.patch("node.commands.ProducerTable", lambda *snapshot: ProducerTable())


MUTANTS: list[tuple[Mutant, str, int]] = [
    (fsync_does_nothing, "blackout", 1),
    (no_folder_sync, "blackout", 1),
    (ack_on_leader_alone, "smoke", 1),
    (quorum_of_one, "smoke", 3),
    (progress_before_fsync, "blackout", 6),
    (no_duplicates_known, "smoke", 1),
    (snapshot_skipped, "smoke", 1),
]
"""With the scenario and the first seed to try."""
SEEDS_MAX = 12


@pytest.mark.parametrize(
    ("mutant", "scenario", "first"), MUTANTS, ids=[mutant.__name__ for mutant, _, _ in MUTANTS]
)
def test_a_known_mistake_is_noticed(mutant: Mutant, scenario: str, first: int) -> None:
    with mutant():
        for seed in range(first, first + SEEDS_MAX):
            if run_seed(scenario, seed).problems:
                return
    pytest.fail(f"{SEEDS_MAX} seeds of {scenario} did not notice")
