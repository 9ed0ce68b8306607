"""A client's view of the cluster after each answer: what it learns, and what it forgets."""

from icecore.client.cluster.cluster_view import ClusterView, has_moved
from icecore.errors import UnknownTopicError
from icecore.v1 import admin_pb2, common_pb2


def partition(epoch: int, leader: int) -> admin_pb2.PartitionMetadata:
    return admin_pb2.PartitionMetadata(partition=0, epoch=epoch, leader=leader, segment_id=epoch)


def answer(
    *partitions: admin_pb2.PartitionMetadata, topic_id: bytes = b"a" * 16, is_down: bool = False
) -> admin_pb2.GetMetadataResponse:
    state = common_pb2.NODE_STATE_DOWN if is_down else common_pb2.NODE_STATE_UP
    return admin_pb2.GetMetadataResponse(
        cluster_id=b"c" * 16,
        nodes=[common_pb2.NodeInfo(node_id=1, address="h:1", state=state)],
        topics=[admin_pb2.TopicMetadata(name="t", topic_id=topic_id, partitions=partitions)],
    )


def test_a_leader_is_one_whose_address_is_known() -> None:
    view = ClusterView().after(answer(partition(1, 1)))
    assert (view.leader("t", 0), view.address(1), view.is_up(1)) == (1, "h:1", True)
    assert (view.leader("t", 1), view.leader("u", 0), view.address(2), view.is_up(2)) == (
        0,
        0,
        None,
        False,
    )
    assert view.after(answer(partition(2, 9), is_down=True)).leader("t", 0) == 0


def test_nodes_are_called_natively_where_they_can_and_we_may_be() -> None:
    found = answer(partition(1, 1))
    found.nodes[0].native_address = "h:2"
    assert ClusterView().after(found).address(1) == "native://h:2"
    view = ClusterView(transport="grpc").after(found)
    assert view.address(1) == view.after(found).address(1) == "h:1"


def test_a_partition_never_goes_back_to_an_older_epoch() -> None:
    view = ClusterView().after(answer(partition(5, 1))).after(answer(partition(4, 2)))
    found = view.partition("t", 0)
    assert found is not None and (found.epoch, found.leader) == (5, 1)


def test_a_topic_made_again_begins_anew() -> None:
    before = ClusterView().after(answer(partition(5, 1)))
    now = before.after(answer(partition(1, 1), topic_id=b"b" * 16))
    found = now.partition("t", 0)
    assert found is not None and found.epoch == 1
    assert now.has_other_topic_than(before) and not before.has_other_topic_than(ClusterView())


def test_what_the_coordinator_refuses_leaves_what_was_known() -> None:
    before = ClusterView().after(answer(partition(5, 1)))
    empty = answer()
    assert isinstance(before.errors_of(empty)["t"], UnknownTopicError)
    assert before.after(empty).partition("t", 0) == before.partition("t", 0)


def test_a_partition_has_moved_when_a_later_epoch_has_a_leader() -> None:
    old = ClusterView().after(answer(partition(1, 1))).partition("t", 0)
    leaderless = ClusterView().after(answer(partition(2, 0))).partition("t", 0)
    new = ClusterView().after(answer(partition(2, 1))).partition("t", 0)
    assert has_moved(old, new) and has_moved(leaderless, new) and has_moved(None, new)
    assert not has_moved(old, leaderless) and not has_moved(new, new) and not has_moved(new, None)


def stamped(
    version: int, *partitions: admin_pb2.PartitionMetadata, topic_id: bytes = b"a" * 16
) -> admin_pb2.GetMetadataResponse:
    found = answer(*partitions, topic_id=topic_id)
    found.coordinator_epoch, found.version = 1, version
    return found


def test_an_older_answer_brings_no_topic_back() -> None:
    """A node that is behind may not have heard that the topic was deleted and made again."""
    view = ClusterView().after(stamped(9, partition(7, 1), topic_id=b"b" * 16))
    later = view.after(stamped(8, partition(3, 1)))
    assert not later.has_other_topic_than(view)
    assert later.stamp == (1, 9)
    assert later.after(stamped(10, partition(8, 1))).has_other_topic_than(view)


def test_an_older_answer_adds_what_was_not_known() -> None:
    first = stamped(9)
    first.ClearField("topics")
    view = ClusterView().after(first)
    older = stamped(8, partition(3, 1))
    older.nodes.add(node_id=2, address="h:2")
    found = view.after(older)
    assert (found.leader("t", 0), found.address(2)) == (1, "h:2")


def test_an_older_answer_does_not_remove_nodes() -> None:
    view = ClusterView().after(stamped(9, partition(3, 1)))
    older = stamped(8)
    older.ClearField("nodes")
    assert view.after(older).leader("t", 0) == 1
