"""A coordinator that works on older metadata than the ones before it is found out (R94)."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import FencedError
from icecore.model import CoordinatorEpoch, NodeId
from icecore_node.identity.identity import Identity


def heard(*told: tuple[int, int], persisted: int = 0) -> Identity:
    """A node that heard coordinators: (epoch, revision), in this order."""
    identity = Identity(NodeId(1))
    folder = SimpleNamespace(cluster_id=b"c", disk_id=b"d", metadata_revision=persisted)
    identity.begin(cast(Any, folder), "h:1", "")
    for epoch, revision in told:
        identity.check_revision(CoordinatorEpoch(epoch), revision)
        identity.hear(CoordinatorEpoch(epoch), revision)
    return identity


@pytest.mark.parametrize(
    ("persisted", "told", "late"),
    [
        (0, [(1, 10)], (2, 9)),  # the next coordinator
        (0, [(1, 10), (2, 12)], (2, 9)),  # the same one, below what was before it
        (0, [(1, 10), (2, 10), (3, 11)], (4, 10)),
        (10, [], (1, 9)),  # nothing was heard since this process began
        (10, [(5, 20)], (5, 9)),
    ],
)
def test_a_lower_revision_is_refused(
    persisted: int, told: list[tuple[int, int]], late: tuple[int, int]
) -> None:
    identity = heard(*told, persisted=persisted)
    epoch, revision = late
    with pytest.raises(FencedError, match=f"it has revision {revision}, node 1 heard of"):
        identity.check_revision(CoordinatorEpoch(epoch), revision)


def test_messages_of_one_coordinator_may_cross() -> None:
    identity = heard((1, 10), (2, 12), (2, 30))
    for epoch, revision in [(2, 11), (2, 30), (3, 30), (3, 31)]:
        identity.check_revision(CoordinatorEpoch(epoch), revision)
    identity.hear(CoordinatorEpoch(2), 11)
    assert identity.metadata_revision == 30


def test_a_coordinator_that_does_not_say_is_believed() -> None:
    identity = heard((1, 10))
    identity.check_revision(CoordinatorEpoch(2), 0)
    identity.hear(CoordinatorEpoch(2))
    assert (identity.coordinator_epoch, identity.metadata_revision) == (2, 10)
