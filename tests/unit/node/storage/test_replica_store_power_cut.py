"""Random lives of one node on a simulated disk: processes die in the middle of anything.

Each seed runs many lives. A life does random operations until it dies, at a random change of the
disk; then the power fails too, or only the process was killed. What the model knows as done must
be there in the next life; what was under way may be there or not; nothing else may appear.
Batches are a multiple of 512 bytes long, so that a garbled sector never holds synced bytes (a real
disk writes a sector whole or not at all).
"""

import random
import sqlite3
from dataclasses import dataclass, field, replace

import pytest

from icecore.errors import IcecoreError
from icecore.topic_settings import FlushBounds
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.disk_levels import DiskLimits
from icecore_node.storage.disks import Disk, Disks
from icecore_node.storage.engines import make_store
from icecore_node.storage.port import FoundReplica
from icecore_node.storage.segment_engine.segment_log import LogSettings
from tests.conformance.log_builder import CLUSTER, LogBuilder, identity
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.index import SimIndex, SimIndexDisk
from tests.simulation.process import ProcessKilled
from tests.support import rotation

SETTINGS = LogSettings(
    group_bytes_max=8 << 10,
    allocation_step_bytes=16 << 10,
    segment_bytes=64 << 10,
    records_per_point=3,
    bytes_per_point=4096,
    sync_all_files_min=2,
    open_files_max=1,
    recycle_bytes_max=128 << 10,
    recycle_bytes_min=1,
)
FAR = 1 << 40
LIVES = 12


@dataclass
class Expected:
    """One segment as the model knows it."""

    log: LogBuilder
    confirmed: bool = False
    done: int = 0
    """Batches that were acknowledged; later ones were attempted."""
    sealed: bool = False
    aside: bool = False
    late: bool = False
    """It may be written and not synced (R80)."""
    unknown: bool = False
    """It was that at a power cut."""


@dataclass
class Model:
    """Everything acknowledged, and the one operation that may be half done."""

    segments: dict[int, Expected] = field(default_factory=dict)
    deleting: set[int] = field(default_factory=set)
    creating: set[int] = field(default_factory=set)
    asiding: set[int] = field(default_factory=set)
    next_id: int = 1
    promises: dict[int, int] = field(default_factory=dict)


class Life:
    """One process after another over the same simulated disks; the process dies in the middle of
    something on any of them."""

    def __init__(self, seed: int, disks: int = 1) -> None:
        self.rng = random.Random(seed)
        self.disks = [SimDisk() for _ in range(disks)]
        self.index_disk = SimIndexDisk()
        for disk in self.disks:
            disk.can_sync_all = bool(seed % 2)
        self.settings = replace(SETTINGS, open_files_max=1 if seed % 4 < 2 else 8)
        self.control = sqlite3.connect(":memory:", isolation_level=None)
        self.model = Model()
        self.power_cuts = 0
        self.is_stopped = False
        """Cleanly: nothing was put off."""
        self.cuts = 0

    def start(self) -> list[FoundReplica]:
        control = ControlStore(self.control)
        files = [SimFileSystem(disk, None) for disk in self.disks]
        disks = [Disk("" if at == 0 else f"{at:032x}", "", each) for at, each in enumerate(files)]
        self.store = make_store(
            files[0],
            SimIndex(self.index_disk, None),
            control,
            CLUSTER,
            self.settings,
            f"boot {self.power_cuts}",
            Disks(control, disks, DiskLimits()),
        )
        return self.store.start_up()

    def live_for(self, operations: int | None) -> None:
        """Let the process live for this many changes of one of the disks; None = for ever."""
        for disk in self.disks:
            disk.faults.operations_to_live = None
        mortal = self.disks[0] if len(self.disks) == 1 else self.rng.choice(self.disks)
        mortal.faults.operations_to_live = operations

    def die(self) -> None:
        self.live_for(None)
        if self.control.in_transaction:
            self.control.rollback()
        if self.rng.random() < 0.7:
            self.power_cuts += 1
            for disk in self.disks:
                disk.power_cut(self.rng)
            self.index_disk.power_cut(self.rng)
            for one in self.model.segments.values():
                one.unknown |= one.late and not one.sealed and not self.is_stopped
        if self.rng.random() < 0.1:
            self.index_disk.wipe()

    # --- operations ---------------------------------------------------------------------------

    def create(self) -> None:
        model = self.model
        ids = [model.next_id, model.next_id + 1]
        model.next_id += 2
        model.creating = set(ids)
        assert self.store.creation.create([identity(one) for one in ids]) == [None, None]
        model.creating = set()
        model.segments.update({one: Expected(LogBuilder(one)) for one in ids})

    def create_confirmed(self) -> None:
        model = self.model
        one = model.next_id
        model.next_id += 1
        model.creating = {one}
        log, is_late = LogBuilder(one), self.rng.random() < 0.5
        if is_late:
            log.identity = replace(log.identity, flush=FlushBounds(1_000, 8 << 10))
        assert self.store.creation.create([log.identity], {one: (b"state", 0)}) == [None]
        model.creating = set()
        model.segments[one] = Expected(log, confirmed=True, late=is_late)

    def confirm(self) -> None:
        for one in self.model.segments.values():
            if not one.confirmed and not one.aside:
                self.store.creation.confirm(one.log.identity, b"state", 0)
                one.confirmed = True

    def append(self) -> None:
        requests, owners = [], []
        for one in self.model.segments.values():
            if one.confirmed and not one.sealed and not one.aside and self.rng.random() < 0.8:
                first = len(one.log.batches)
                for _ in range(self.rng.choice([1, 1, 2, 5])):
                    size = 512 * self.rng.choice([1, 2, 3, 9]) - 152 - 8
                    one.log.make(1, size)
                requests.append(one.log.request_of(first, len(one.log.batches)))
                owners.append(one)
        self.store.append_group(requests)
        for request, one in zip(requests, owners, strict=True):
            assert request.error is None, request.error
            one.done = len(one.log.batches)

    def sync_late(self) -> None:
        late = [number for number, one in self.model.segments.items() if one.late]
        self.store.sync(late)

    def settle_late(self) -> None:
        for segment_id, one in self.model.segments.items():
            if one.late and not one.aside:
                self.store.sync([segment_id], from_now_on=True)
                one.late = False
                return

    def stop(self) -> None:
        if self.rng.random() < 0.2:
            self.store.close()
            self.is_stopped = True
            raise ProcessKilled

    def seal(self) -> None:
        for segment_id, one in self.model.segments.items():
            if one.done > 3 and not one.sealed and not one.aside:
                self.store.seal(segment_id, one.log.tail.end_offset, one.log.tail.digest)
                one.sealed = True
                return

    def delete(self) -> None:
        sealed = [number for number, one in self.model.segments.items() if one.sealed or one.aside]
        if sealed:
            segment_id = self.rng.choice(sealed)
            self.model.deleting = {segment_id}
            self.store.removal.delete([segment_id], 1)
            del self.model.segments[segment_id]
            self.model.deleting = set()

    def quarantine(self) -> None:
        open_ids = [number for number, one in self.model.segments.items() if not one.aside]
        if len(open_ids) > 3:
            segment_id = self.rng.choice(open_ids)
            self.model.asiding = {segment_id}
            self.store.removal.quarantine(segment_id, "a test")
            self.model.segments[segment_id].aside = True
            self.model.asiding = set()

    def promise(self) -> None:
        pairs = [(number, self.rng.randrange(100)) for number in self.model.segments]
        pairs = [(one, max(epoch, self.store.promises.epoch_of(one))) for one, epoch in pairs]
        self.store.promises.persist(pairs, 1)
        self.model.promises.update(pairs)

    def sync_index(self) -> None:
        self.store.index.flush()

    def run(self) -> None:
        """Until death."""
        self.is_stopped = False
        self.live_for(self.rng.randrange(1, 120 // len(self.disks)))
        operations = [self.append] * 6 + [self.create, self.confirm, self.seal, self.delete]
        operations.append(self.create_confirmed)
        operations += [self.quarantine, self.promise, self.sync_index]
        operations += [self.sync_late, self.settle_late, self.stop]
        try:
            while True:
                self.rng.choice(operations)()
        except ProcessKilled:
            self.die()

    # --- what must be there -------------------------------------------------------------------

    def check(self, found: list[FoundReplica]) -> None:
        model = self.model
        replicas = {replica.identity.segment_id: replica for replica in found}
        assert set(replicas) <= set(model.segments) | model.creating
        for segment_id in model.creating & set(replicas):
            assert replicas[segment_id].intact
            model.segments[segment_id] = Expected(LogBuilder(segment_id))
        for segment_id, one in list(model.segments.items()):
            if segment_id not in replicas:
                assert segment_id in model.deleting
                del model.segments[segment_id]
                continue
            replica = replicas[segment_id]
            if segment_id in model.asiding and not replica.intact:
                one.aside = True
            one.sealed |= replica.sealed_end_offset is not None
            if one.aside:
                assert not replica.intact
            elif one.unknown and not replica.intact:
                one.aside = True  # it stays so, and nothing more is asked of it
            else:
                self.check_intact(segment_id, one, replica)
        model.creating, model.deleting, model.asiding = set(), set(), set()
        for segment_id, epoch in model.promises.items():
            assert self.store.promises.epoch_of(segment_id) >= epoch

    def check_intact(self, segment_id: int, one: Expected, replica: FoundReplica) -> None:
        assert replica.intact, replica.why
        log = one.log
        if not one.confirmed and replica.identity.base_offset < 0:
            return
        one.confirmed = True
        assert replica.identity == log.identity and replica.producer_snapshot == b"state"
        count = replica.tail.end_offset
        assert one.done <= count <= len(log.batches)
        assert replace(replica.tail, max_known_high_watermark=0) == log.tails[count]
        self.cuts += count < len(log.batches)
        log.batches, log.tails = log.batches[:count], log.tails[: count + 1]
        one.done = count
        offset, data = 0, b""
        while offset < count:
            run, offset = self.store.reader.read(segment_id, offset, 3000, FAR)
            assert run
            data += run
        assert data == b"".join(log.batches)
        if one.sealed:
            assert replica.seal_digest == log.tail.digest
            self.store.reader.full_digest(segment_id)


NODES = [(seed, 1 + seed // 40) for seed in range(60)]
"""(seed, disks)"""


@pytest.mark.parametrize(
    ("seed", "disks"), rotation.take("unit: lives between power cuts (seed, disks)", NODES, 15)
)
def test_nothing_acknowledged_is_ever_lost(seed: int, disks: int) -> None:
    life = Life(seed, disks)
    for _ in range(LIVES):
        try:
            life.live_for(life.rng.randrange(60) if life.rng.random() < 0.2 else None)
            found = life.start()
        except ProcessKilled:
            life.is_stopped = False  # it may have said already that it runs again
            life.die()  # died while recovering: the next one must cope
            continue
        life.live_for(None)
        try:
            life.check(found)
        except IcecoreError as error:
            raise AssertionError(f"seed {seed}") from error
        life.run()
    assert life.model.next_id > 1
