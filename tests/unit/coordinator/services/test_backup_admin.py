"""A backup is read in parts, and each is of the moment of the first one."""

from typing import Any, cast

import pytest

from icecore.errors import IcecoreError, InvalidRequestError, ThrottledError
from icecore.process.system import SystemRng
from icecore.rpc.ports import Clock
from icecore.v1 import admin_pb2 as pb
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.services import backup_admin
from icecore_coordinator.services.backup_admin import IDLE_MS, KEPT_MS, SNAPSHOTS_MAX, BackupAdmin
from icecore_coordinator.state.cluster_state import next_of
from icecore_coordinator.state.records import Change, updated
from icecore_coordinator.stores.sqlite_store import SqliteStore

CALL = cast(Any, backup_admin).CallContext("peer", "anonymous", None)


class Hands(Clock):
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> float:
        return float(self.ms)


class World:
    """A coordinator's ledger, and who takes backups of it."""

    def __init__(self) -> None:
        self.clock = Hands()
        self.store = SqliteStore(":memory:")
        self.ledger = Ledger(self.store, SystemRng())
        self.admin = BackupAdmin(self.ledger, self.clock, SystemRng())

    async def change(self, count: int = 1) -> None:
        for number in range(count):
            counter = updated(next_of(self.ledger.state, f"c{number}"))
            await self.ledger.decide(lambda _, counter=counter: Change((counter,)))  # type: ignore[misc]

    async def read(self, snapshot_id: bytes = b"", start: int = 0) -> pb.ReadMetadataResponse:
        request = pb.ReadMetadataRequest(snapshot_id=snapshot_id, start=start)
        body = await self.admin.read(request.SerializeToString(), CALL)
        return pb.ReadMetadataResponse.FromString(body)

    async def note(self, revision: int) -> None:
        await self.admin.note(pb.NoteBackupRequest(revision=revision).SerializeToString(), CALL)

    @property
    def noted(self) -> tuple[int, int]:
        cluster = self.ledger.state.cluster
        assert cluster is not None
        return cluster.backup_at_ms, cluster.backup_revision


@pytest.fixture
async def world() -> World:
    world = World()
    await world.ledger.open()
    await world.change(50)
    return world


async def test_all_parts_are_of_one_moment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_admin, "PART_BYTES", 100)
    stored = sorted(await world.store.scan(""))
    part = first = await world.read()
    entries = list(part.entries)
    while part.entries:
        await world.change(3)  # between any two parts
        part = await world.read(first.snapshot_id, len(entries))
        assert (part.revision, part.records) == (first.revision, len(stored))
        again = await world.read(first.snapshot_id, len(entries))
        assert again.entries == part.entries
        entries += part.entries
    assert sorted((each.key, each.value, each.version) for each in entries) == stored
    assert first.revision == 51 + 1
    assert first.cluster_id == world.ledger.state.cluster_id


async def test_a_snapshot_is_kept_while_it_is_read(world: World) -> None:
    first = await world.read()
    for _ in range(5):
        world.clock.ms += int(KEPT_MS)
        await world.read(first.snapshot_id)
        await world.read()
    world.clock.ms += int(KEPT_MS) + 1
    await world.read()
    with pytest.raises(InvalidRequestError, match="begin the backup anew"):
        await world.read(first.snapshot_id)


async def test_so_many_at_a_time(world: World) -> None:
    taken = [await world.read() for _ in range(SNAPSHOTS_MAX)]
    with pytest.raises(ThrottledError, match="under way"):
        await world.read()
    await world.note(taken[0].revision)
    for each in taken:  # the others of this revision are still read
        await world.read(each.snapshot_id, 10)
    world.clock.ms += int(IDLE_MS)
    for each in taken[1:]:
        await world.read(each.snapshot_id, 20)
    with pytest.raises(ThrottledError, match="under way"):
        await world.read()
    world.clock.ms += 1
    await world.read()  # one that nobody reads any more gives way
    for each in taken[1:]:
        await world.read(each.snapshot_id, 30)
    with pytest.raises(InvalidRequestError, match="begin the backup anew"):
        await world.read(taken[0].snapshot_id, 20)


async def test_parts_that_can_not_be(world: World) -> None:
    first = await world.read()
    for snapshot_id, start in ((b"", 1), (b"12345678", 0), (first.snapshot_id, 52)):
        with pytest.raises(InvalidRequestError):
            await world.read(snapshot_id, start)
    assert not (await world.read(first.snapshot_id, 51)).entries


async def test_the_newest_backup_is_noted(world: World) -> None:
    assert world.noted == (0, 0)
    old = (await world.read()).revision
    await world.change()
    new = (await world.read()).revision
    await world.note(new)
    assert world.noted == (1_000_000, new)
    world.clock.ms += 5
    await world.note(old)
    assert world.noted == (1_000_000, new)
    await world.note(new)
    assert world.noted == (1_000_005, new)
    for wrong in (0, world.ledger.state.metadata_revision + 1, 1 << 63):
        with pytest.raises(IcecoreError, match="no backup has revision"):
            await world.note(wrong)
