"""A client from another world: only generated stubs and grpc. Run by test_plain_grpc.py.

Usage: plain_grpc_client.py COORDINATOR TOPIC. Prints the values fetched, one a line.
"""

import sys
import time

import grpc

import icecore
from icecore.v1 import admin_pb2, admin_pb2_grpc, common_pb2, data_pb2, data_pb2_grpc


def main() -> None:
    assert icecore.__file__ is not None
    assert "generated" in icecore.__file__, "this must not be the real package"
    coordinator, topic = sys.argv[1:]
    admin = admin_pb2_grpc.AdminServiceStub(grpc.insecure_channel(coordinator))
    settings = admin_pb2.TopicSettings(partitions=1, replication_factor=3)
    created = admin.CreateTopic(admin_pb2.CreateTopicRequest(name=topic, settings=settings))
    leader = 0
    while not leader:
        metadata = admin.GetMetadata(admin_pb2.GetMetadataRequest(topics=[topic]))
        leader = metadata.topics[0].partitions[0].leader
        time.sleep(0.05)
    address = next(node.address for node in metadata.nodes if node.node_id == leader)
    node = data_pb2_grpc.DataServiceStub(grpc.insecure_channel(address))

    records = [
        common_pb2.Record(
            key=b"k%d" % number,
            value=b"value %d" % number,
            tags=["even" if number % 2 == 0 else "odd"],
            headers=[common_pb2.Header(name="n", value=b"%d" % number)],
        )
        for number in range(5)
    ]
    entry = data_pb2.ProducePartition(topic=topic, partition=0, records=records)
    header = data_pb2.ProduceHeader(acks=common_pb2.ACKS_ALL, partitions=[entry])
    produced = node.Produce(data_pb2.ProduceRequest(header=header)).partitions[0]
    assert not produced.error.reason, produced.error
    assert (produced.base_offset, produced.durable_copies) == (0, 3), produced

    wanted = data_pb2.FetchPartition(topic_id=created.topic.topic_id, partition=0, offset=1)
    fetch = data_pb2.FetchHeader(
        max_bytes=1 << 20, max_wait_ms=5000, as_records=True, partitions=[wanted]
    )
    fetched = node.Fetch(data_pb2.FetchRequest(header=fetch)).header.partitions[0]
    assert not fetched.error.reason, fetched.error
    assert fetched.next_offset == 5
    for record in fetched.records:
        print(record.offset, record.key.decode(), record.value.decode(), *record.tags)


if __name__ == "__main__":
    main()
