"""The index of the segment engine finds every record in every state of a log, or names a gap.

Random lives over many states; then the states that random lives meet too rarely, one by one.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from icecore.codec import index_entries
from icecore.errors import OutOfSpaceError
from icecore_node.storage.engine import (
    ACTIVE_INDEX,
    NO_INDEX,
    SEALED_INDEX,
    KnownLog,
    LogEnd,
    NewLog,
)
from icecore_node.storage.index.entries import Entries
from icecore_node.storage.index.points import FAMILY, PREFIX, Put
from icecore_node.storage.index.recent_entries import RecentEntries
from icecore_node.storage.index.stored_entries import StoredRun
from icecore_node.storage.segment_engine import index_upkeep
from icecore_node.storage.segment_engine.segment_engine import SegmentEngine
from icecore_node.storage.segment_engine.segment_log import LogSettings
from icecore_node.storage.segment_engine.segment_names import index_file_name
from tests.conformance.log_builder import LogBuilder
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.index import SimIndex, SimIndexDisk
from tests.support import rotation
from tests.support.index_oracle import (
    append_random,
    check_all_ways,
    check_found,
    keyed,
    maintain_all,
)

SETTINGS = LogSettings(
    group_bytes_max=1 << 20,
    allocation_step_bytes=64 << 10,
    segment_bytes=300 << 10,
    recent_entries_bytes_max=64 << 10,
    entries_per_run=30,
    open_indexes_max=1,
)


class FullIndex(SimIndex):
    """Finds no room while it is told so."""

    is_full = False

    def write(self, puts: Iterable[Put]) -> None:
        if self.is_full:
            raise OutOfSpaceError("full")
        super().write(puts)


class Bench:
    """An engine, its disks, and logs that it holds."""

    def __init__(self, settings: LogSettings = SETTINGS) -> None:
        self.settings = settings
        self.disk, self.index_disk = SimDisk(), SimIndexDisk()
        self.logs: dict[int, LogBuilder] = {}
        self.sealed: dict[int, LogEnd] = {}
        self._open()

    def _open(self) -> None:
        self.files = SimFileSystem(self.disk, None)
        self.index = FullIndex(self.index_disk, None)
        self.engine = SegmentEngine(self.files, self.index, self.settings, lambda _: None)

    def opened(self, segment_id: int = 1, base_offset: int = 100) -> LogBuilder:
        log = self.logs[segment_id] = LogBuilder(segment_id, base_offset)
        assert self.engine.create([NewLog(log.identity)], lambda _: None) == {}
        return log

    def append(self, log: LogBuilder, first: int) -> None:
        request = log.request_of(first, len(log.batches))
        self.engine.append_group([request])
        assert request.error is None

    def add(self, log: LogBuilder, *batches: bytes) -> None:
        first = len(log.batches)
        for raw in batches:
            log.add(raw)
        self.append(log, first)

    def seal(self, log: LogBuilder) -> None:
        number, tail = log.identity.segment_id, log.tail

        def remember(end: LogEnd) -> None:
            self.sealed[number] = end

        self.engine.seal(number, tail.end_offset, tail.digest, remember)

    def restart(self, power_cut: random.Random | None = None) -> None:
        if power_cut is not None:
            self.disk.power_cut(power_cut)
            self.index_disk.power_cut(power_cut)
        self._open()
        known = [
            KnownLog(log.identity, sealed=self.sealed.get(number))
            for number, log in self.logs.items()
        ]
        assert not any(found.damage for found in self.engine.start_up(known, []))

    def covers(self, number: int = 1) -> list[type]:
        return [type(cover) for cover in self.engine.reader.find(number).coverage.covers]

    def stored(self, number: int = 1) -> int:
        """Keys of entries in the database."""
        prefix = number << 16
        found = self.index.scan(FAMILY, PREFIX.pack(prefix), PREFIX.pack(prefix + 1))
        return len(list(found))


def check(bench: Bench, rng: random.Random) -> None:
    for log in bench.logs.values():
        check_all_ways(bench.engine.index, log, rng)


def live(bench: Bench, rng: random.Random, steps: int) -> None:
    """Anything may happen to the logs and the index, and nothing is ever missed."""
    for _ in range(steps):
        log = bench.logs[rng.choice(list(bench.logs))]
        number = log.identity.segment_id
        choice = rng.random()
        if choice < 0.5 and number not in bench.sealed:
            request = append_random(log, rng, rng.randrange(1, 12))
            bench.engine.append_group([request])
            assert request.error is None
        elif choice < 0.75:
            for _ in range(rng.randrange(12)):
                bench.engine.index.maintain()
        elif choice < 0.80:
            bench.engine.index.flush()
        elif choice < 0.86:
            bench.restart(rng if rng.random() < 0.7 else None)
        elif choice < 0.90 and number not in bench.sealed:
            cut(bench, log, rng.randrange(len(log.tails)))
        elif choice < 0.92:
            bench.index_disk.is_rotten = True
        elif choice < 0.94:
            bench.index.is_full = not bench.index.is_full
        elif choice < 0.96 and number not in bench.sealed and rng.random() < 0.5:
            bench.seal(log)
        elif number in bench.sealed and rng.random() < 0.3:
            damage_file(bench, log, rng)
        check_all_ways(bench.engine.index, log, rng)


def cut(bench: Bench, log: LogBuilder, batches: int) -> None:
    """Leave so many; an index that can't be told keeps the log from being cut."""
    number, end = log.identity.segment_id, log.tails[batches].end_offset
    try:
        bench.engine.truncate(number, end)
    except OutOfSpaceError:
        assert bench.index.is_full
        return
    del log.batches[batches:], log.tails[batches + 1 :]


def damage_file(bench: Bench, log: LogBuilder, rng: random.Random) -> None:
    name = index_file_name(log.identity)
    if bench.files.exists(name):
        file = bench.files.open(name)
        file.pwritev([rng.randbytes(8)], rng.randrange(max(file.size() - 8, 1)))
        file.close()


@pytest.mark.parametrize("seed", rotation.take("unit: lives of an index", range(20), 5))
def test_nothing_is_missed_in_a_random_life(seed: int) -> None:
    rng = random.Random(seed)
    small = replace(SETTINGS, recent_entries_bytes_max=rng.choice([1 << 10, 4 << 10, 64 << 10]))
    bench = Bench(small)
    for number in (1, 2):
        bench.opened(number, rng.choice([0, 100]))
    live(bench, rng, 60)
    bench.index.is_full = False
    bench.engine.index.flush()  # whatever is wrong with the database and the files shows now
    check(bench, rng)
    maintain_all(bench.engine.index)
    for number, log in bench.logs.items():
        if number not in bench.sealed:
            bench.seal(log)
    maintain_all(bench.engine.index)
    for number, log in bench.logs.items():
        assert check_all_ways(bench.engine.index, log, rng) == []
        assert bench.engine.index.summary(number).kind == SEALED_INDEX
        assert bench.stored(number) == 0
    bench.restart(rng)
    for log in bench.logs.values():
        assert check_all_ways(bench.engine.index, log, rng) == []


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_missed_where_all_hashes_are_the_same(seed: int) -> None:
    rng = random.Random(seed)
    with (
        mock.patch.object(index_entries, "tag_hash", lambda tag: 99),
        mock.patch("icecore.codec.record.hash_keys", lambda keys: np.full(len(keys), 99, "<u8")),
    ):
        bench = Bench()
        bench.opened()
        live(bench, rng, 40)


# --- one state after the other ------------------------------------------------------------------


def filled(bench: Bench, batches: int = 100) -> LogBuilder:
    """A log of batches of one record, each with a key of its own and a common tag."""
    log = bench.opened()
    bench.add(log, *(keyed([b"k%d" % number], [["t"]]) for number in range(batches)))
    return log


def test_an_active_log_has_no_gap_and_few_places() -> None:
    bench = Bench()
    log = filled(bench, 10)
    assert check_found(bench.engine.index, log) == []
    summary = bench.engine.index.summary(1)
    assert (summary.kind, summary.entries, summary.runs) == (ACTIVE_INDEX, 20, 1)
    for _ in range(60):
        bench.add(log, *(keyed([b"x", b"y"]) for _ in range(20)))
        maintain_all(bench.engine.index)
        assert check_found(bench.engine.index, log) == []
    assert bench.engine.index.summary(1).runs <= 9
    assert bench.covers().count(StoredRun) > 1
    bench.restart()
    assert check_found(bench.engine.index, log) == []


def test_what_a_power_cut_took_is_a_gap_until_it_is_maintained() -> None:
    bench = Bench()
    log = filled(bench, 10)
    bench.engine.index.flush()
    bench.add(log, keyed([b"late"]))
    end = log.tail.end_offset
    bench.restart(mock.Mock(spec=random.Random, randint=lambda low, high: low, random=lambda: 0.0))
    assert check_found(bench.engine.index, log) == [(end - 1, end)]
    bench.add(log, keyed([b"after"]))
    assert check_found(bench.engine.index, log) == [(end - 1, end)]
    maintain_all(bench.engine.index)
    assert check_found(bench.engine.index, log) == []


def test_batches_without_keys_and_tags_are_no_gap_after_a_restart() -> None:
    bench = Bench()
    log = bench.opened()
    bench.add(log, *(keyed([None]) for _ in range(5)))
    assert bench.stored() == 0
    bench.restart()
    assert check_found(bench.engine.index, log) == []
    assert maintain_all(bench.engine.index) < 5
    bench.add(log, keyed([b"k"]), keyed([None]))
    bench.restart()
    assert check_found(bench.engine.index, log) == []


def test_a_batch_that_makes_no_sense_is_a_gap_and_no_failure() -> None:
    bench = Bench()
    log = bench.opened()
    with mock.patch(
        "icecore_node.storage.segment_engine.appended_entries.batch_entries", return_value=None
    ):
        bench.add(log, keyed([b"k"]), keyed([b"l"]))
    bench.add(log, keyed([b"m"]))
    assert check_found(bench.engine.index, log) == [(100, 102)]
    maintain_all(bench.engine.index)
    assert check_found(bench.engine.index, log) == []


def test_entries_of_a_log_that_was_cut_are_not_taken_for_those_that_come_in_their_place() -> None:
    bench = Bench()
    log = filled(bench)
    maintain_all(bench.engine.index)
    bench.add(log, keyed([b"recent"]))
    cut(bench, log, 10)
    bench.add(log, *(keyed([b"other"]) for _ in range(100)))
    check_found(bench.engine.index, log)
    bench.restart()
    check_found(bench.engine.index, log)
    maintain_all(bench.engine.index)
    assert check_found(bench.engine.index, log) == []


def test_a_sealed_log_has_one_file_and_nothing_in_the_database() -> None:
    bench = Bench()
    log = filled(bench)
    bench.seal(log)
    assert check_found(bench.engine.index, log) == []
    maintain_all(bench.engine.index)
    summary = bench.engine.index.summary(1)
    assert (summary.kind, summary.entries, summary.runs) == (SEALED_INDEX, 200, 1)
    assert summary.timestamps_ms == (7, 7)
    assert bench.stored() == 0
    bench.restart()
    assert bench.covers() == []  # nothing is opened before somebody asks
    assert check_found(bench.engine.index, log) == []


def test_an_empty_sealed_log_has_a_file_too() -> None:
    bench = Bench()
    bench.seal(bench.opened())
    maintain_all(bench.engine.index)
    summary = bench.engine.index.summary(1)
    assert (summary.kind, summary.entries, summary.timestamps_ms) == (SEALED_INDEX, 0, None)


@pytest.mark.parametrize("position", [0, 20, 300, 2000])
def test_a_damaged_file_is_a_gap_then_it_is_made_again(position: int) -> None:
    bench = Bench()
    log = filled(bench)
    bench.seal(log)
    maintain_all(bench.engine.index)
    bench.restart()
    name = index_file_name(log.identity)
    file = bench.files.open(name)
    file.pwritev([b"\xa5" * 8], position)
    assert check_found(bench.engine.index, log) == [(100, 200)]
    assert not bench.files.exists(name)
    assert bench.engine.index.summary(1).kind == NO_INDEX
    maintain_all(bench.engine.index)
    assert check_found(bench.engine.index, log) == []
    assert bench.files.exists(name) and bench.stored() == 0


def test_a_file_is_read_back_and_dropped_when_it_is_damaged() -> None:
    bench = Bench()
    log = filled(bench)
    index = bench.engine.index
    assert index.verify(1) == 0  # an active log has no file
    bench.seal(log)
    maintain_all(index)
    name = index_file_name(log.identity)
    file = bench.files.open(name)
    assert index.verify(1) == file.size()
    file.pwritev([b"\xa5" * 8], file.size() - 8)
    assert index.verify(1) == 0
    assert not bench.files.exists(name)
    maintain_all(index)
    assert index.verify(1) == bench.files.open(name).size()


def test_the_file_of_another_segment_counts_for_nothing() -> None:
    bench = Bench()
    log, other = filled(bench), bench.opened(2, 100)
    bench.add(other, *(keyed([b"o%d" % number]) for number in range(100)))
    for each in (log, other):
        bench.seal(each)
    maintain_all(bench.engine.index)
    bench.files.rename(index_file_name(other.identity), index_file_name(log.identity))
    bench.restart()
    assert check_found(bench.engine.index, log) == [(100, 200)]


def test_a_crash_between_file_and_forgetting_leaves_nothing() -> None:
    bench = Bench()
    log = filled(bench)
    bench.seal(log)
    with mock.patch("icecore_node.storage.segment_engine.index_upkeep.IndexUpkeep._forget_stored"):
        maintain_all(bench.engine.index)
    assert bench.stored() > 0
    bench.restart()
    maintain_all(bench.engine.index)
    assert bench.stored() == 0
    assert check_found(bench.engine.index, log) == []


@pytest.mark.parametrize("steps", range(12))
def test_a_crash_at_any_step_leaves_no_blocks_behind(steps: int) -> None:
    bench = Bench()
    log = filled(bench, 500)
    for _ in range(steps):
        bench.engine.index.maintain()
    bench.restart(random.Random(steps))
    check_found(bench.engine.index, log)
    maintain_all(bench.engine.index)
    assert check_found(bench.engine.index, log) == []
    bench.engine.drop([log.identity])
    assert bench.stored() == 0


def test_a_process_that_ends_waits_for_no_file() -> None:
    bench = Bench()
    log = filled(bench, 500)
    bench.seal(log)
    merge = index_upkeep.merge

    def ending(walks: list[Iterator[Entries]]) -> Iterator[Entries]:
        bench.engine.index.close()
        return merge(walks)

    with mock.patch.object(index_upkeep, "merge", ending):
        maintain_all(bench.engine.index)
    assert not bench.engine.index.maintain()
    assert not bench.files.exists(index_file_name(log.identity))
    bench.restart()
    maintain_all(bench.engine.index)
    assert check_found(bench.engine.index, log) == []
    assert bench.files.exists(index_file_name(log.identity))


def test_memory_is_bounded_and_what_found_none_is_maintained() -> None:
    bench = Bench(replace(SETTINGS, recent_entries_bytes_max=2 << 10))
    log = filled(bench, 300)  # nobody maintains
    memory = bench.engine._memory
    assert 0 <= memory.used_bytes <= 2 << 10
    check_found(bench.engine.index, log)
    maintain_all(bench.engine.index)
    assert check_found(bench.engine.index, log) == []
    assert not memory.is_scarce
    bench.engine.drop([log.identity])
    assert memory.used_bytes == 0


def test_runs_are_made_early_when_memory_is_scarce() -> None:
    bench = Bench(replace(SETTINGS, entries_per_run=1 << 20, recent_entries_bytes_max=3000))
    log = filled(bench, 70)  # 1680 bytes
    assert bench.covers() == [RecentEntries]
    maintain_all(bench.engine.index)
    assert bench.covers() == [StoredRun]
    assert check_found(bench.engine.index, log) == []


def test_no_database_for_a_while() -> None:
    bench = Bench()
    log = filled(bench)
    bench.index.is_full = True
    for _ in range(20):
        bench.engine.index.maintain()
    bench.add(log, keyed([b"k"]))
    assert check_found(bench.engine.index, log) == []
    bench.index.is_full = False
    maintain_all(bench.engine.index)
    assert check_found(bench.engine.index, log) == []


def test_the_last_of_a_disk_is_for_records() -> None:
    bench = Bench()
    log = filled(bench)
    bench.seal(log)
    with mock.patch.object(SimFileSystem, "space", lambda self: (96, 4)):
        assert bench.engine.index.maintain()  # recent entries become a run: they take memory
        for _ in range(5):
            assert not bench.engine.index.maintain()
    assert not bench.files.exists(index_file_name(log.identity))
    assert check_found(bench.engine.index, log) == []
    maintain_all(bench.engine.index)
    assert bench.files.exists(index_file_name(log.identity))


def test_a_log_that_is_set_aside_takes_its_index_along() -> None:
    bench = Bench()
    log = filled(bench)
    bench.seal(log)
    maintain_all(bench.engine.index)
    bench.engine.set_aside(log.identity)
    assert not bench.files.exists(index_file_name(log.identity))
    assert bench.stored() == 0
    bench.engine.salvage.restore(KnownLog(log.identity), lambda: None)
    assert check_found(bench.engine.index, log) == [(100, 200)]
    maintain_all(bench.engine.index)
    assert check_found(bench.engine.index, log) == []


def test_a_limit_ends_the_search_with_the_last_that_is_enough() -> None:
    bench = Bench()
    log = filled(bench)
    maintain_all(bench.engine.index)
    tag = index_entries.tag_hash(b"t")
    page = bench.engine.index.candidates(1, [tag], (100, 200), limit=7)
    assert (page.searched, page.offsets[0].tolist()) == ((100, 107), list(range(100, 107)))
    page = bench.engine.index.candidates(1, [tag], (100, 200), limit=7, newest_first=True)
    assert (page.searched, page.offsets[0].tolist()) == ((193, 200), list(range(193, 200)))
    beyond = bench.engine.index.candidates(1, [tag], (150, 300), limit=1000)
    assert (beyond.gaps, len(beyond.offsets[0])) == (((200, 300),), 50)
    nothing = bench.engine.index.candidates(1, [], (100, 200), limit=10)
    assert (nothing.searched, nothing.offsets, nothing.gaps) == ((100, 200), (), ())
    assert log.tail.end_offset == 200


@pytest.mark.parametrize("tags", [0, 1, 1000])
def test_records_with_any_number_of_tags(tags: int) -> None:
    bench = Bench()
    log = bench.opened()
    bench.add(log, keyed([None, b"k"], [[f"t{number}" for number in range(tags)], []]))
    assert check_found(bench.engine.index, log) == []
    bench.seal(log)
    maintain_all(bench.engine.index)
    assert check_found(bench.engine.index, log) == []
