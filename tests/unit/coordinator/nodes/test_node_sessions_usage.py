"""Texts of a heartbeat go to everybody who describes the cluster: they are short, and one line."""

from icecore.v1 import coordinator_pb2 as pb
from icecore.v1.common_pb2 import DiskUsage
from icecore_coordinator.nodes.node_sessions import DISKS_KEPT_MAX, TEXT_BYTES_MAX
from tests.unit.coordinator.nodes.test_node_sessions import Watch


def test_texts_of_disks_are_short_and_have_no_lines() -> None:
    watch = Watch()
    session = watch.connect(1)
    disks = [DiskUsage(path=f"/{i}" + "x" * 9_000, problem="e\n" * 900) for i in range(100)]
    watch.sessions.heartbeat(session, pb.HeartbeatRequest(sequence=1, disks=disks))
    kept = watch.sessions.usage(1).disks
    assert len(kept) == DISKS_KEPT_MAX
    for each in kept:
        assert len(each.path) == TEXT_BYTES_MAX
        assert "\n" not in each.problem and each.problem.startswith("e\\ne\\n")


def test_the_problem_of_an_object_store_is_one_line() -> None:
    watch = Watch()
    beat = pb.HeartbeatRequest(sequence=1, store_problem="no\nstore")
    watch.sessions.heartbeat(watch.connect(1), beat)
    assert watch.live.of(1).store_problem == "no\\nstore"


def test_usage_is_forgotten_with_the_stream() -> None:
    watch = Watch()
    session = watch.connect(1)
    beat = pb.HeartbeatRequest(sequence=1, disk_used_bytes=7, reclaim_bytes=5)
    watch.sessions.heartbeat(session, beat)
    assert watch.sessions.usage(1).used_bytes == 7
    watch.sessions.disconnected(session)
    usage = watch.sessions.usage(1)
    assert (usage.used_bytes, usage.reclaim_bytes, usage.disks) == (0, 0, ())


def test_a_text_is_bounded_in_bytes() -> None:
    watch = Watch()
    disks = [DiskUsage(path="\u00fc" * 300), DiskUsage(path="/data")]
    watch.sessions.heartbeat(watch.connect(1), pb.HeartbeatRequest(sequence=1, disks=disks))
    assert [each.path for each in watch.sessions.usage(1).disks] == ["\u00fc" * 127, "/data"]


def test_a_stream_that_was_replaced_says_nothing_of_the_disk() -> None:
    watch = Watch()
    old, new = watch.connect(1), watch.connect(1)
    watch.sessions.heartbeat(new, pb.HeartbeatRequest(sequence=1, disk_used_bytes=7))
    watch.sessions.heartbeat(old, pb.HeartbeatRequest(sequence=9, disk_used_bytes=8))
    assert watch.sessions.usage(1).used_bytes == 7
    watch.sessions.disconnected(new)
    watch.sessions.heartbeat(new, pb.HeartbeatRequest(sequence=2, disk_used_bytes=7))
    assert watch.sessions.usage(1).used_bytes == 0
