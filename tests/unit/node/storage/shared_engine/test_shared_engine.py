"""Shared files over many random lives: what was answered is there, what was cut is not, whatever
crashed; and damage condemns those whom it hits."""

import pytest

from tests.unit.node.storage.shared_engine.random_life import Life


@pytest.mark.parametrize("seed", range(40))
def test_a_random_life(seed: int) -> None:
    life = Life(seed)
    for _ in range(150):
        life.step()
    life.restart()
    life.check()


@pytest.mark.parametrize("seed", range(60))
def test_a_flipped_bit_hits_whom_it_hits(seed: int) -> None:
    life = Life(seed)
    for _ in range(60):
        life.step()
    if not life.names():
        return
    life.index.flush()
    rng = life.rng
    name = rng.choice(life.names())
    inode = life.disk.names[name]
    position = rng.randrange(len(inode.read(inode.size, 0).rstrip(b"\0")) or 1)
    hit = life.at(name, position)
    whole = {row.segment_id: row.log.tail.end_offset for row in life.rows.values()}
    inode.flip_bit(position, rng.randrange(8))
    found = life.judged()
    for segment_id, end_offset in whole.items():
        if segment_id != hit:
            assert not found[segment_id].damage, (segment_id, hit, name, position)
        if not found[segment_id].damage:
            assert found[segment_id].tail.end_offset == end_offset
            assert life.is_whole(segment_id) or segment_id == hit
