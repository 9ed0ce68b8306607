"""The leader's side of a Replicate stream, as far as it needs no stream."""

from icecore.rpc import framing
from icecore.v1 import replication_pb2
from icecore_node.serving.sender import Framer


def test_followers_that_need_the_same_message_share_it() -> None:
    """And it is what a message of one's own would be."""
    framer, body = Framer(), [b"batch-1", memoryview(b"batch-2")]
    first = framer.frame(b"offsets 0 to 2", body)
    assert first == framing.frame_bulk(b"offsets 0 to 2", body)
    assert framer.frame(b"offsets 0 to 2", body) is first
    other = framer.frame(b"offsets 1 to 2", body[1:])
    header, data = framing.split_bulk(other, replication_pb2.ReplicaData)
    assert (header, data) == (b"offsets 1 to 2", b"batch-2")
    assert framer.frame(b"offsets 0 to 2", body) == first
