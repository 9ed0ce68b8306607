"""Numbers that object storage alone has seen, or an earlier adoption alone, are not given out again
(R109)."""

from dataclasses import replace

import pytest

from icecore.errors import InvalidRequestError
from icecore_coordinator.decisions.adoption.adopt import NUMBER_LEAP, adopt
from icecore_coordinator.decisions.adoption.told import ToldBucket, ToldNode
from icecore_coordinator.decisions.remote.tier_import import COUNTED_MAX
from icecore_coordinator.decisions.remote.tiering import COUNTER, SEGMENT_IDS
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import CounterRecord
from tests.support.cluster_states import Cluster, started
from tests.unit.coordinator.decisions.adoption.test_adopt import (
    NOTHING,
    OTHER,
    after,
    copy,
    node,
    put,
)

FAR = 5 * NUMBER_LEAP
URL = "s3://bucket"


def with_bucket(told: ToldNode, bucket: ToldBucket, url: str = URL) -> ToldNode:
    return replace(told, node=replace(told.node, tier_url=url), bucket=bucket)


def counters(state: ClusterState, *nodes: ToldNode) -> dict[str, int]:
    found = put(adopt(state, nodes, NOTHING), CounterRecord)
    return {each.name: each.next_value for each in found}


def test_numbers_that_the_bucket_alone_has_seen_are_passed_over() -> None:
    """The cluster had restored what an earlier one made, which had come much further."""
    read = ToldBucket(segment_ids_max=FAR, attempts_max=FAR + 7)
    found = counters(started(), with_bucket(node(1), read), node(2), node(3))
    assert found[SEGMENT_IDS] > FAR + NUMBER_LEAP
    assert found[COUNTER] > FAR + 7 + NUMBER_LEAP


def test_a_number_that_leaves_no_room_changes_nothing() -> None:
    read = ToldBucket(attempts_max=COUNTED_MAX)
    with pytest.raises(InvalidRequestError, match="too few numbers would be left"):
        adopt(started(), [with_bucket(node(1), read)], NOTHING)


def test_a_bucket_that_nobody_read_is_a_gap() -> None:
    denied, read = ToldBucket(problem="access denied"), ToldBucket(attempts_max=3)
    others = [node(2), node(3)]
    found = adopt(started(), [with_bucket(node(1), denied), *others], NOTHING)
    [gap] = [each for each in found.findings if each.is_gap]
    assert "the object store s3://bucket was not read (access denied)" in gap.why
    others = [with_bucket(node(2), read), node(3)]
    assert not adopt(started(), [with_bucket(node(1), denied), *others], NOTHING).has_gaps
    others = [with_bucket(node(2), read, "s3://another"), node(3)]
    assert adopt(started(), [with_bucket(node(1), denied), *others], NOTHING).has_gaps


@pytest.mark.parametrize("is_empty", [False, True])
def test_the_same_old_copy_adopted_twice_gives_out_nothing_twice(is_empty: bool) -> None:
    """Nodes do not tell all numbers. Those of the first time are below those of the second."""

    def copied() -> ClusterState:
        return Cluster() if is_empty else started()

    held = copy(1, 9, OTHER)
    once = adopt(copied(), [node(1, copies=(held,)), node(2), node(3)], NOTHING)
    first = after(copied(), once)
    worked = 1_000_000  # changes and numbers, until the store is lost again
    heard = once.revision + worked
    nodes = [node(each, copies=(held,), metadata_revision=heard) for each in (1, 2, 3)]
    twice = adopt(copied(), nodes, NOTHING)
    second = after(copied(), twice)
    for name in (each.name for each in put(once, CounterRecord)):
        one, other = first.counters[name].next_value, second.counters[name].next_value
        is_told = name == "incarnation"
        assert is_told or other > one + worked, name
    assert second.topics[OTHER].settings_version > first.topics[OTHER].settings_version + worked
    for key, partition in first.partitions.items():
        if partition.tier_revision:
            assert second.partitions[key].tier_revision > partition.tier_revision + worked
