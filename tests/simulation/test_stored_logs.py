"""A disk that is read without its node: what is wrong on it is noticed, and only that."""

from collections.abc import Iterator

import pytest

from icecore.codec import batch
from icecore_node.storage.segment_engine.segment_header import FILE_HEADER_LENGTH
from icecore_node.storage.segment_engine.segment_names import file_name
from tests.simulation import scenarios
from tests.simulation.cluster import Host, World
from tests.simulation.copies import sealed_segments, split_logs
from tests.simulation.scenarios import run_seed
from tests.simulation.stored_logs import identity_of, replica_rows, scan_log

SEED = 3


def test_a_wrong_index_and_a_false_copy_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    look = scenarios._look_at_a_disk

    def spoil_and_look(world: World) -> list[str]:
        host = list(world.hosts.values())[world.seed % len(world.hosts)]
        assert look(world) == []
        listed = [each for each in sealed_segments(world) if host.node_id in each.replicas]
        segment_id = listed[0].segment_id
        points = host.index.families["offset"].values
        key = min(key for key in points if key[:8] == (segment_id << 16).to_bytes(8, "big"))
        right, points[key] = points[key], (FILE_HEADER_LENGTH + 8).to_bytes(8, "big")
        [wrong_point] = look(world)
        points[key] = right
        names = host.disk.durable_names
        [name] = [name for name in names if name.endswith(f"{segment_id:020d}.0.log")]
        del host.disk.durable_names[name]
        missing = look(world)
        return [wrong_point, *missing]

    monkeypatch.setattr(scenarios, "_look_at_a_disk", spoil_and_look)
    problems = run_seed("smoke", SEED).problems
    assert [problem.partition(":")[0] for problem in problems] == ["I20", "I20", "false copy"]
    assert "its index has offset" in problems[0]
    assert "has no durable file" in problems[1]


def rewrite_last_batch(host: Host, segment_id: int) -> None:
    """As another leader would have written it: a millisecond later, all CRCs right."""
    [row] = replica_rows(host, segment_id)
    inode = host.disk.durable_names[file_name(identity_of(host, row))]
    *_, last = scan_log(host, row, inode)
    header = last.header
    stamped, _ = batch.stamp(
        inode.read(header.batch_length, last.position),
        0,
        header,
        segment_id=segment_id,
        epoch=header.epoch,
        base_offset=header.base_offset,
        append_timestamp_ms=header.append_timestamp_ms + 1,
        high_watermark=header.high_watermark,
        prev_header_crc32c=header.prev_header_crc32c,
    )
    inode.write(stamped, last.position)
    inode.sync()


def test_logs_that_two_leaders_wrote_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled: list[int] = []

    def spoil_and_look(world: World) -> Iterator[str]:
        assert list(split_logs(world)) == []
        segment = next(each for each in sealed_segments(world) if len(each.replicas) > 1)
        rewrite_last_batch(world.hosts[f"node-{segment.replicas[-1]}"], segment.segment_id)
        spoiled.append(segment.segment_id)
        return split_logs(world)

    monkeypatch.setattr(scenarios, "split_logs", spoil_and_look)
    [problem] = run_seed("smoke", SEED).problems
    assert problem.startswith(f"segment {spoiled[0]}: I6: node ")
