"""A disk that is read without its node: what is wrong on it is noticed, and only that."""

import pytest

from icecore_node.storage.segment_engine.segment_header import FILE_HEADER_LENGTH
from tests.simulation import scenarios
from tests.simulation.cluster import World
from tests.simulation.copies import sealed_segments
from tests.simulation.scenarios import run_seed

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
