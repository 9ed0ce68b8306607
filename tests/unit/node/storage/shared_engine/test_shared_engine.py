"""Shared files over many random lives: what was answered is there, what was cut is not, whatever
crashed; and damage condemns those whom it hits."""

import copy
import random
from collections.abc import Callable, Sequence

import pytest

from icecore.errors import IcecoreError
from icecore_node.storage.control.fail_stop import FailStop
from icecore_node.storage.engine import KnownLog, NewLog
from icecore_node.storage.index.derived_index import DerivedIndex
from icecore_node.storage.shared_engine.shared_engine import SharedEngine
from icecore_node.storage.shared_engine.shared_files import file_name
from tests.conformance.log_builder import LogBuilder
from tests.simulation import mistakes_shared
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.index import SimIndex, SimIndexDisk
from tests.simulation.mistakes import Mistake
from tests.support import rotation
from tests.unit.node.storage.shared_engine.random_life import SETTINGS, Life

LIVES = rotation.take("unit: lives of the shared engine", range(40), 10)
TEARS = rotation.take("unit: power cuts of the shared engine", range(40), 10)
FLIPS = rotation.take("unit: flipped bits of the shared engine", range(60), 15)


@pytest.mark.parametrize("seed", LIVES)
def test_a_random_life(seed: int) -> None:
    life = Life(seed)
    for _ in range(150):
        life.step()
        life.check_power_cut()
    life.restart()
    life.check()


@pytest.mark.parametrize("seed", TEARS)
def test_what_a_power_cut_tears_counts_at_no_later_start(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power goes before a sync. The first start passes a torn copy over, for its original is
    there; what that start notes of the file must not tell the next one that it was on disk."""
    life = Life(seed)
    sync, is_inside = FailStop.sync, False

    def cut_before(fail_stop: FailStop, doubtful: Sequence[int], run: Callable[[], None]) -> None:
        nonlocal is_inside
        if not is_inside and life.rng.random() < 0.5:
            is_inside = True
            life.check_power_cut(starts=3)
            is_inside = False
        sync(fail_stop, doubtful, run)

    monkeypatch.setattr(FailStop, "sync", cut_before)
    for _ in range(100):
        life.step()


@pytest.mark.parametrize("seed", FLIPS)
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


def fails(seed: int) -> bool:
    """Return whether a random life shows that something is wrong."""
    life = Life(seed)
    try:
        for _ in range(150):
            life.step()
        life.restart()
    except (AssertionError, IcecoreError):
        return True
    return False


@pytest.mark.parametrize(
    "mistake",
    [
        mistakes_shared.shared_group_not_synced,
        mistakes_shared.shared_file_freed_too_early,
        mistakes_shared.dead_batches_come_back,
        mistakes_shared.cut_is_not_told,
        mistakes_shared.copy_forgets_a_run,
        mistakes_shared.copy_is_not_told,
    ],
)
def test_a_mistake_is_noticed(mistake: Callable[[], Mistake]) -> None:
    with mistake():
        assert any(fails(seed) for seed in range(40))


def test_damage_that_condemns_nobody_is_noticed() -> None:
    life = Life(1)
    for _ in range(60):
        life.step()
    row = next(row for row in life.rows.values() if row.log.batches and not row.sealed)
    segment_id, end_offset = row.segment_id, row.log.tail.end_offset
    [run, *_] = life.engine._logs[segment_id].all_runs()
    life.disk.names[file_name(run.number)].flip_bit(run.position + 40, 3)
    assert life.judged()[segment_id].damage
    with mistakes_shared.shared_damage_condemns_nobody():
        found = life.judged()[segment_id]
        assert not found.damage and found.tail.end_offset < end_offset


def test_an_idle_log_does_not_keep_old_files() -> None:
    """Its batches are copied behind those of others, a little with each group."""
    disk, index = SimDisk(), SimIndexDisk()

    def start(known: list[KnownLog]) -> tuple[SharedEngine, list[str]]:
        derived = DerivedIndex(SimIndex(index, None), list)
        engine = SharedEngine(SimFileSystem(disk, None), derived, SETTINGS, dict[int, str]().update)
        return engine, [found.damage for found in engine.start_up(known, [])]

    engine, _ = start([])
    idle, busy = LogBuilder(1), LogBuilder(2)
    for log in (idle, busy):
        engine.create([NewLog(log.identity)], lambda created: None)
    engine.append_group([idle.request(5, 1, 700)])
    for number in range(3, 40):
        engine.append_group([busy.request(4, 1, 900), idle.request(1, 1, 10)])
        engine.drop([busy.identity])
        busy = LogBuilder(number)
        engine.create([NewLog(busy.identity)], lambda created: None)
        engine.index.maintain()
        files = [name for name in disk.names if name.endswith(".log")]
        assert len(files) <= 6
    data, end_offset = engine.reader.read(1, 0, 1 << 20, 1 << 40)
    assert (data, end_offset) == (b"".join(idle.batches), idle.tail.end_offset)
    _, damage = start([KnownLog(idle.identity), KnownLog(busy.identity)])
    assert damage == ["", ""]


@pytest.mark.parametrize("seed", range(4))
def test_slow_logs_are_whole_after_each_group(seed: int) -> None:
    """Copies of copies need not end where these did: what a crash leaves between two of them is a
    run of which a part was copied again."""
    rng, disk, index = random.Random(seed), SimDisk(), SimIndexDisk()

    def start(disk: SimDisk, index: SimIndexDisk, known: list[KnownLog]) -> SharedEngine:
        derived = DerivedIndex(SimIndex(index, None), list)
        engine = SharedEngine(SimFileSystem(disk, None), derived, SETTINGS, dict[int, str]().update)
        assert [found.damage for found in engine.start_up(known, [])] == [""] * len(known)
        return engine

    engine, slow = start(disk, index, []), [LogBuilder(number) for number in (1, 2, 3)]
    engine.create([NewLog(log.identity) for log in slow], lambda created: None)
    for number in range(4, 150):
        busy = LogBuilder(number)
        engine.create([NewLog(busy.identity)], lambda created: None)
        appended = [log for log in slow if rng.random() < 0.3]
        requests = [log.request(1, 1, rng.choice([10, 300, 900])) for log in appended]
        engine.append_group([busy.request(rng.randint(1, 4), 1, 900), *requests])
        engine.drop([busy.identity])
        engine.index.maintain()
        known = [KnownLog(log.identity) for log in slow]
        again = start(copy.deepcopy(disk), copy.deepcopy(index), known)
        for log in slow:
            data, end_offset = again.reader.read(log.identity.segment_id, 0, 1 << 20, 1 << 40)
            assert (data, end_offset) == (b"".join(log.batches), log.tail.end_offset)
