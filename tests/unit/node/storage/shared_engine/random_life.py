"""A random life of an engine of shared files, and an oracle that knows what must be there.

Logs are begun, written in groups, cut, sealed and dropped; processes die in the middle of what they
do, and power cuts take what was not synced. What was answered must be there after that, what was
cut must not, and nothing may be condemned unless a disk has lost or changed something.
"""

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from icecore.errors import StorageError
from icecore_node.storage.batches.batch_scan import empty_tail
from icecore_node.storage.engine import (
    CreatedLog,
    FoundLog,
    KnownLog,
    LogEnd,
    NewLog,
)
from icecore_node.storage.index.derived_index import DerivedIndex
from icecore_node.storage.segment_engine.segment_log import LogSettings
from icecore_node.storage.shared_engine.shared_engine import SharedEngine
from tests.conformance.log_builder import LogBuilder
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.index import SimIndex, SimIndexDisk
from tests.simulation.process import ProcessKilled

SETTINGS = LogSettings(
    allocation_step_bytes=8 << 10,
    io_workers=2,
    shared_file_bytes=24 << 10,
    shared_copy_bytes=3 << 10,
)
PARTITIONS = 6
FAR = 1 << 40


@dataclass
class Row:
    """The control store's memory of a log, and the ends that may be found of it."""

    log: LogBuilder
    sealed: LogEnd | None = None
    may_end: tuple[int, ...] = ()
    """The numbers of batches with which it may end after a crash."""

    @property
    def segment_id(self) -> int:
        return self.log.identity.segment_id

    def known(self) -> KnownLog:
        return KnownLog(self.log.identity, 0, self.sealed)

    def keep(self, batches: int) -> None:
        """Cut it to this number of batches."""
        self.log.batches = self.log.batches[:batches]
        self.log.tails = self.log.tails[: batches + 1]
        self.may_end = (batches,)


class Life:
    """One data folder over many processes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk, self.index = SimDisk(), SimIndexDisk()
        self.rows: dict[int, Row] = {}
        self.condemned: dict[int, str] = {}
        self.deaths = 0
        self.going: list[Row] = []
        self._next_id = 1
        self._start([])

    def _start(self, known: Sequence[KnownLog]) -> list[FoundLog]:
        files, index = SimFileSystem(self.disk, None), SimIndex(self.index, None)
        derived = DerivedIndex(index, list)
        self.engine = SharedEngine(files, derived, SETTINGS, self.condemned.update)
        self._drop()
        return self.engine.start_up(known, [])

    # --- what happens -------------------------------------------------------------------------

    def step(self) -> None:
        """One thing, in which the process may die."""
        rng = self.rng
        doing = rng.choices(
            (self.create, self.append, self.cut, self.seal, self.drop, self.maintain, self.restart),
            (2, 14, 1, 1, 1, 2, 1),
        )[0]
        if doing != self.restart and rng.random() < 0.08:
            self.disk.faults.operations_to_live = rng.randrange(8)
        try:
            doing()
        except ProcessKilled:
            self.deaths += 1
            self.restart()
        self.disk.faults.operations_to_live = None

    def create(self) -> None:
        if len(self._open()) >= 8:
            return
        new = []
        for _ in range(self.rng.randint(1, 3)):
            partition = self.rng.randrange(PARTITIONS)
            log = LogBuilder(self._next_id, self.rng.randrange(3) * 10)
            log.identity = replace(log.identity, partition=partition)
            log.tails = [empty_tail(log.identity, 0)]
            self._next_id += 1
            new.append(Row(log, may_end=(0,)))

        def remember(created: Sequence[CreatedLog]) -> None:
            assert not any(one.replaces_data for one in created)
            self.rows.update((row.segment_id, row) for row in new)

        assert self.engine.create([NewLog(row.log.identity) for row in new], remember) == {}

    def append(self) -> None:
        rows = [row for row in self._open() if self.rng.random() < 0.6]
        requests = []
        for row in rows:
            count = len(row.log.batches)
            batches = self.rng.randint(1, 3)
            requests.append(row.log.request(batches, 1, self.rng.randrange(900)))
            row.may_end = tuple(range(count, count + batches + 1))
        if not requests:
            return
        self.engine.append_group(requests)
        assert [request.error for request in requests] == [None] * len(requests)
        for row in rows:
            row.may_end = (len(row.log.batches),)

    def cut(self) -> None:
        rows = [row for row in self._open() if row.log.batches]
        if not rows:
            return
        row = self.rng.choice(rows)
        was, batches = len(row.log.batches), self.rng.randrange(len(row.log.batches) + 1)
        row.may_end = (was, batches)
        tail = self.engine.truncate(row.segment_id, row.log.tails[batches].end_offset)
        assert tail == row.log.tails[batches]
        row.keep(batches)

    def seal(self) -> None:
        if not self._open():
            return
        row = self.rng.choice(self._open())

        def remember(end: LogEnd) -> None:
            row.sealed = end

        tail = row.log.tail
        self.engine.seal(row.segment_id, tail.end_offset, tail.digest, remember)

    def drop(self) -> None:
        rows = [row for row in self.rows.values() if row.sealed or self.rng.random() < 0.2]
        self.going = rows[: self.rng.randint(0, 3)]
        for row in self.going:
            del self.rows[row.segment_id]
        self._drop()

    def _drop(self) -> None:
        """As ordered, also by an earlier process."""
        self.engine.drop([row.log.identity for row in self.going])
        self.going = []

    def maintain(self) -> None:
        self.engine.index.maintain()
        self.index.flush()

    # --- what is found ------------------------------------------------------------------------

    def restart(self) -> None:
        """Start again, perhaps without power in between; all must be there."""
        for _ in range(50):
            self.disk.faults.operations_to_live = None
            if self.rng.random() < 0.6:
                self.disk.power_cut(self.rng)
                self.index.power_cut(self.rng)
            if self.rng.random() < 0.2:
                self.disk.faults.operations_to_live = self.rng.randrange(12)
            rows = list(self.rows.values())
            try:
                found = self._start([row.known() for row in rows])
                break
            except ProcessKilled:
                self.deaths += 1
        self.disk.faults.operations_to_live = None
        for row, one in zip(rows, found, strict=True):
            assert one.damage == "", (row.segment_id, one.damage)
            self._is_right(row, one)
        self.check()

    def check_power_cut(self, starts: int = 1) -> None:
        """Start ``starts`` times after a power cut at this moment; no start finds anything
        damaged."""
        disk, index = copy.deepcopy(self.disk), copy.deepcopy(self.index)
        rng = random.Random(self.rng.random())
        disk.power_cut(rng)
        index.power_cut(rng)
        for _ in range(starts):
            derived = DerivedIndex(SimIndex(index, None), list)
            files = SimFileSystem(disk, None)
            engine = SharedEngine(files, derived, SETTINGS, dict[int, str]().update)
            found = engine.start_up([row.known() for row in self.rows.values()], [])
            assert [one.damage for one in found] == [""] * len(found)
            derived.flush()

    def _is_right(self, row: Row, found: FoundLog) -> None:
        counts = [len(row.log.batches)] if row.sealed else row.may_end
        ends = {row.log.tails[count].end_offset: count for count in counts}
        assert found.tail.end_offset in ends, (row.segment_id, found, ends)
        row.keep(ends[found.tail.end_offset])
        assert replace(found.tail, max_known_high_watermark=0) == row.log.tail
        if row.sealed is None:
            assert found.headers == row.log.headers()

    def check(self) -> None:
        """Check that reads return what was written."""
        for row in self.rows.values():
            log = row.log
            base, end = log.identity.base_offset, log.tail.end_offset
            assert self.engine.reader.tail(row.segment_id).end_offset == end
            data, offset = b"", base
            while offset < end:
                run, offset = self.engine.reader.read(row.segment_id, offset, 2000, FAR)
                data += run
            assert data == b"".join(log.batches)

    def _open(self) -> list[Row]:
        return [row for row in self.rows.values() if row.sealed is None]

    # --- damage -------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return sorted(name for name in self.disk.durable_names if name.endswith(".log"))

    def at(self, name: str, position: int) -> int | None:
        """Return the segment whose batch lies at this position; None = no segment."""
        for segment_id, log in self.engine._logs.items():
            for run in log.all_runs():
                end = run.position + run.length
                if name.endswith(f"{run.number:020d}.log") and run.position <= position < end:
                    return segment_id
        return None

    def judged(self) -> dict[int, FoundLog]:
        """Return what a new process finds, whatever it is."""
        rows = list(self.rows.values())
        found = self._start([row.known() for row in rows])
        return {row.segment_id: one for row, one in zip(rows, found, strict=True)}

    def is_whole(self, segment_id: int) -> bool:
        """Return whether a log can be read to its end."""
        row = self.rows[segment_id]
        try:
            self.engine.reader.read(segment_id, row.log.identity.base_offset, 1 << 30, FAR)
        except StorageError:
            return False
        return True
