"""Messages between servers, altered field by field, cost no acked record, no process and no
partition. The long form is ``make fuzz MINUTES=60``, and ``SEED=`` with ``ONLY=`` repeats one."""

from pathlib import Path
from random import Random

import pytest

from icecore.v1 import coordinator_pb2 as pb
from tests.cluster import fuzz, fuzz_messages
from tests.cluster.fuzz_messages import WAYS, Facts
from tests.support import rotation

SECONDS = 60.0
SEEDS = rotation.fresh_seeds("fuzz of messages between servers", 1, 1)
SEGMENT = pb.SegmentAssignment(segment_id=7, epoch=3, replicas=[1, 2, 3], topic="t")
FACTS = Facts(
    {"cluster_id": b"c" * 16, "epoch": 3, "SegmentAssignment": SEGMENT},
    {"node_id": 2},
    {"segment_id": [8, 9], "SegmentAssignment": [SEGMENT]},
)


@pytest.mark.alone
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_servers_are_told_nothing_is_lost(tmp_path: Path, seed: int) -> None:
    verdict = await fuzz.one_round(tmp_path, seed, SECONDS)
    assert not verdict.found, str(verdict)
    assert verdict.sent > 100 and verdict.acked > 100, str(verdict)


def test_each_field_of_each_request_is_a_target() -> None:
    found = {str(each) for each in fuzz_messages.targets()}
    for name in (
        "NodeService/WriteBack segments.segment.lossy",
        "NodeService/CommitTables partitions.segments.manifest_sha256",
        "CoordinatorService/Heartbeat led.high_watermark",
        "ReplicationService/Replicate entries.durable_end_offset",
        "MirrorService/FollowTopics after_version",
    ):
        assert name in found
    services = {each.service for each in fuzz_messages.targets()}
    assert services == set(fuzz_messages.SERVICES)


def test_every_field_can_be_altered_in_every_way() -> None:
    """Each result is a message that its receiver can parse, whatever the field."""
    requests = fuzz_messages.methods()
    changed = dict.fromkeys(WAYS, 0)
    for number, target in enumerate(fuzz_messages.targets()):
        for way in WAYS:
            rng = Random(number)
            message = fuzz_messages.build(requests[target.service, target.method], FACTS, rng)
            before = message.SerializeToString(deterministic=True)
            fuzz_messages.alter(message, target.path, way, FACTS, rng)
            changed[way] += message.SerializeToString(deterministic=True) != before
    assert not changed["true"] and not changed["cut"]
    assert all(count > 100 for way, count in changed.items() if way not in ("true", "cut"))


def test_a_seed_says_what_a_message_is() -> None:
    descriptor = fuzz_messages.methods()["NodeService", "Fence"]

    def made(seed: int) -> bytes:
        rng = Random(seed)
        message = fuzz_messages.build(descriptor, FACTS, rng)
        fuzz_messages.alter(message, ("segments", "epoch"), "beyond", FACTS, rng)
        body: bytes = message.SerializeToString(deterministic=True)
        return body

    assert made(1) == made(1)
    assert len({made(seed) for seed in range(20)}) > 1


def test_true_values_come_from_facts() -> None:
    descriptor = fuzz_messages.methods()["NodeService", "WriteBack"]
    message = fuzz_messages.build(descriptor, FACTS, Random(1))
    assert message.cluster_id == b"c" * 16
    assert message.segments[0].segment == SEGMENT
    fuzz_messages.alter(message, ("node_id",), "own", FACTS, Random(1))
    assert message.node_id == 2
    fuzz_messages.alter(message, ("segments", "segment", "segment_id"), "another", FACTS, Random(1))
    assert message.segments[0].segment.segment_id in (8, 9)
