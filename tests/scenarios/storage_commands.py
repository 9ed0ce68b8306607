"""Commands of the stories about group commit: what is appended together, and what fails in it.

``commit`` prints each operation on files and index in order, then the fate of each request. A
record has 100 bytes unless the story says otherwise; [a, b) are positions in a segment's file.
"""

from collections.abc import Iterator

from icecore_node.ports import DiskFailedError
from icecore_node.storage.port import FoundReplica
from icecore_node.storage.segment_engine.segment_log import LogSettings
from tests.conformance.log_builder import identity
from tests.scenarios.storage_room import StorageRoom
from tests.scenarios.vocabulary import Vocabulary

STORAGE = Vocabulary(StorageRoom)
ALLOCATION_STEP_BYTES = 16 << 10
FAR = 1 << 40


@STORAGE.command
def segments(
    room: StorageRoom,
    *,
    count: int,
    group_bytes_max: int = 1 << 20,
    sync_all_files_min: int = 0,
    open_files_max: int = 100,
) -> list[str]:
    """Begin: so many empty segments. With 0 there is no ``syncfs``."""
    room.disk.can_sync_all = bool(sync_all_files_min)
    room.start(
        LogSettings(
            group_bytes_max=group_bytes_max,
            allocation_step_bytes=ALLOCATION_STEP_BYTES,
            sync_all_files_min=sync_all_files_min or FAR,
            open_files_max=open_files_max,
        )
    )
    room.create(count)
    room.watch.noted()
    return []


@STORAGE.command
def append(
    room: StorageRoom,
    *,
    name: str,
    segment: int,
    batches: int = 1,
    records: int = 1,
    record_bytes: int = 100,
) -> list[str]:
    """A request with the next batches of a segment joins the group."""
    assert name not in room.group, f"{name} is in the group already"
    room.group[name] = room.logs[segment].request(batches, records, record_bytes)
    return []


@STORAGE.command
def commit(room: StorageRoom) -> Iterator[str]:
    """The group is written, synced and indexed. Requests are answered in their order."""
    group, room.group = room.group, {}
    try:
        room.store.append_group(list(group.values()))
    except DiskFailedError:
        yield from [*room.watch.noted(), "the process ends"]
        return
    yield from room.watch.noted()
    for name, request in group.items():
        error = request.error
        fate = f"failed, {error.reason}: {error.message}" if error else "durable"
        yield f"{name}: {fate}"


@STORAGE.command
def lose(room: StorageRoom) -> list[str]:
    """Drop the requests of the next commit, so that their callers have lost count."""
    room.group.clear()
    return []


# --- what goes wrong ------------------------------------------------------------------------------


@STORAGE.command
def writes_fail(room: StorageRoom, *, on: tuple[int, ...]) -> list[str]:
    """From now on nothing can be written to the files of these segments, or of none."""
    room.watch.failing_writes = set(on)
    return []


@STORAGE.command
def next_sync_fails(room: StorageRoom) -> list[str]:
    """Whatever is synced next."""
    room.disk.faults.failing_syncs = 1
    return []


@STORAGE.command
def index_rots(room: StorageRoom) -> list[str]:
    """Whatever is read from the index or written to it meets damage."""
    room.index_disk.is_rotten = True
    return []


@STORAGE.command
def space_left(room: StorageRoom, *, kib: int) -> list[str]:
    """The disk has so much room."""
    room.disk.limit(room.disk.used_bytes() + (kib << 10))
    return []


@STORAGE.command
def out_of_descriptors(room: StorageRoom, *, now: bool) -> list[str]:
    """No file can be opened; those that are open stay so."""
    room.disk.faults.opens_left = 0 if now else None
    return []


# --- afterwards -----------------------------------------------------------------------------------


@STORAGE.command
def cut(room: StorageRoom, *, segment: int, to: int) -> list[str]:
    """A log is cut back to an end, durably."""
    tail = room.store.truncate(segment, to)
    log = room.logs[segment]
    kept = [each.end_offset for each in log.tails].index(to)
    del log.batches[kept:], log.tails[kept + 1 :]
    return [*room.watch.noted(), f"segment {segment}: ends at {tail.end_offset}"]


@STORAGE.command
def read(room: StorageRoom, *, segment: int) -> list[str]:
    """Print the offset up to which a segment can be read from its base."""
    offset = 0
    while True:
        data, next_offset = room.store.reader.read(segment, offset, 1 << 20, FAR)
        if not data:
            return [f"segment {segment}: readable to {offset}"]
        offset = next_offset


@STORAGE.command
def start(room: StorageRoom) -> list[str]:
    """A new process opens the folder as it is, and judges each log."""
    found = room.start()
    return [*room.watch.noted(), *(_judged(each) for each in found)]


@STORAGE.command
def create(room: StorageRoom, *, segment: int) -> list[str]:
    """An order to create the files of a segment whose base is not known yet."""
    [error] = room.store.creation.create([identity(segment)])
    if error is not None:
        raise error
    return [f"segment {segment}: created"]


@STORAGE.command
def confirm(room: StorageRoom, *, segment: int, base: int, producers: str = "") -> list[str]:
    """An order that tells where a segment begins, and with which producers."""
    tail = room.store.creation.confirm(identity(segment, base), producers.encode(), 0)
    room.watch.noted()
    return [f"segment {segment}: ends at {tail.end_offset}"]


def _judged(replica: FoundReplica) -> str:
    name = f"segment {replica.identity.segment_id}"
    why = replica.why.split(":")[0]
    if not replica.intact:
        return f"{name}: UNKNOWN, {why}"
    return f"{name}: intact, ends at {replica.tail.end_offset}, {why}"
