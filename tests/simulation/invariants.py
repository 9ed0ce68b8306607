"""Invariants that only somebody can check who sees every process at once.

Looked at from outside, at the moment something happens, like ``marks``: no event is added, no
chance drawn. Numbers I… are those of docs/design/protocol.md. A broken invariant need not do harm
in the same world: a promise that was not stored only matters if the node dies in the next moment.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any
from unittest import mock

from icecore.errors import StorageError
from icecore.model import Segment, SegmentId, SegmentState
from icecore.v1 import coordinator_pb2
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.node_sessions import NodeSessions, Session
from icecore_coordinator.state.records import Change, SegmentRecord
from icecore_coordinator.stores.sqlite_store import SqliteStore
from icecore_node.identity.identity import Identity, Lease
from icecore_node.replication.follower import Follower
from icecore_node.replication.leader import Leader
from icecore_node.serving.orders.node_service import NodeService
from icecore_node.storage.engine import KnownLog
from icecore_node.storage.rocksdb_engine.log_judge import LogJudge
from icecore_node.storage.segment_engine.segment_names import ASIDE, is_derived
from icecore_node.storage.segment_engine.start_up import FileVerdict, StartUp
from icecore_node.storage.shared_engine.shared_files import GONE, NOTE_KEY
from icecore_node.storage.shared_engine.shared_files import file_name as shared_file_name
from icecore_node.storage.shared_engine.start_up import Judged, SharedStartUp
from icecore_replication.checked import Checked
from tests.simulation.copies import COORDINATOR
from tests.simulation.disk import SimDisk, SimFile, SimFileSystem
from tests.simulation.index import SimIndex
from tests.simulation.inode import Inode
from tests.simulation.invariants_cores import CoreInvariants, stepping
from tests.simulation.invariants_hand_over import HandOverInvariants
from tests.simulation.invariants_hand_over import watched as handing_over
from tests.simulation.invariants_retention import RetentionInvariants
from tests.simulation.invariants_tiering import TieringInvariants
from tests.simulation.invariants_tiering import watched as tiering
from tests.simulation.losses import Losses
from tests.simulation.process import PROCESS, SimProcess
from tests.simulation.stored_logs import (
    durable_tail,
    files_to_delete,
    is_in_memory,
    replica_rows,
    shared_problems,
)

if TYPE_CHECKING:
    from tests.simulation.cluster import World


class Invariants:
    """The facts seen so far. Each method that starts with ``on_`` is called by a watched function.

    Args:
        world: All processes of it are looked at.
        waits_for_all: No record is acknowledged by a quorum.
    """

    def __init__(self, world: "World", *, waits_for_all: bool) -> None:
        self.broken: dict[str, None] = {}
        """In the order they were noticed; each text once."""
        self.cores = CoreInvariants(world, self._note, waits_for_all=waits_for_all)
        self.losses = Losses(world, self._note)
        self.retention = RetentionInvariants(world, self._note)
        self.hand_over = HandOverInvariants(world, self._note)
        self.tiering = TieringInvariants(world, self._note)
        self._world = world
        self._answered: dict[tuple[int, int], int] = {}
        self._heartbeats_ms: dict[tuple[int, int], float] = {}
        self._created: set[tuple[SimProcess | None, str]] = set()
        self._failed: set[tuple[SimProcess, int]] = set()

    def _note(self, what: str) -> None:
        process = PROCESS.get()
        if process is None or process.alive:
            self.broken.setdefault(f"{process}: {what}")

    def _this_node(self) -> Identity:
        """The process that runs."""
        process = PROCESS.get()
        assert process is not None
        identity: Identity = self._world.shells[process.name].context.identity
        return identity

    def _now_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000

    # --- I9: promises never go back, and nothing is appended below one --------------------------

    def on_fenced(self, node_id: int, body: bytes, answer: bytes) -> None:
        """A node answers a fence: its promises are on disk."""
        request = coordinator_pb2.FenceRequest.FromString(body)
        replicas = coordinator_pb2.FenceResponse.FromString(answer).replicas
        control = self._world.hosts[f"node-{node_id}"].control
        for ref, reply in zip(request.segments, replicas, strict=True):
            if not reply.intact:
                continue
            query = "SELECT epoch FROM promises WHERE segment_id = ?"
            row = control.execute(query, (ref.segment_id,)).fetchone()
            if row is None or row[0] < ref.epoch:
                self._note(f"I9: epoch {ref.epoch} of segment {ref.segment_id} is not promised")
            key = (node_id, ref.segment_id)
            self._answered[key] = max(ref.epoch, self._answered.get(key, 0))

    def on_append(self, role: Leader | Follower) -> None:
        """A leader or follower appends: it has not told a coordinator where its log ends."""
        segment = role.segment
        if self._answered.get((self._this_node().node_id, segment.segment_id), 0) > segment.epoch:
            self._note(f"I9: segment {segment.segment_id} is appended to below a promise")

    # --- I11: durable copies at the seal, and of whoever gets one later ---------------------------

    def on_commit(self, change: Change, before: Mapping[int, SegmentRecord]) -> None:
        """A change of the metadata is stored: whoever is listed at a seal has all of it, and so
        has whoever is listed from then on."""
        self.losses.on_commit(change, before)
        for record in change.puts:
            if not isinstance(record, SegmentRecord) or record.segment.lossy:
                continue
            old, segment = before.get(record.segment.segment_id), record.segment
            self.cores.on_stored(segment)
            if segment.state is not SegmentState.SEALED:
                continue
            was_sealed = old is not None and old.segment.state is SegmentState.SEALED
            known = old.segment.replicas if old is not None and was_sealed else ()
            for node_id in set(segment.replicas) - set(known):
                self._check_copy(node_id, segment)

    def before_commit(self, change: Change, before: Mapping[int, SegmentRecord]) -> None:
        """A change was decided just now. Who is up when it is stored at last, is another matter."""
        for record in change.puts:
            if not isinstance(record, SegmentRecord) or record.segment.lossy:
                continue
            old, segment = before.get(record.segment.segment_id), record.segment
            is_new = segment.surplus and (old is None or not old.segment.surplus)
            if is_new and segment.state is SegmentState.SEALED:
                self._check_left(segment)

    def _check_left(self, segment: Segment) -> None:
        """R93: a copy is to go, so enough others are there, on nodes that are up."""
        process = PROCESS.get()
        live = self._world.shells[process.name if process else COORDINATOR].live
        up = [each for each in segment.replicas if live.is_live(each)]
        if len(up) < segment.settings.replication_factor:
            self._note(f"R93: segment {segment.segment_id} loses a copy, left are those of {up}")
        for node_id in up:
            self._check_copy(node_id, segment)

    def _check_copy(self, node_id: int, segment: Segment) -> None:
        """As the node knows it; of one that is down, or has not looked yet, what is on its disk.
        What a copy became that was damaged meanwhile is another matter."""
        name = f"node-{node_id}"
        node = self._world.shells.get(name)
        replica = node.replicas.get(segment.segment_id) if node is not None else None
        if replica is not None and not replica.life.is_intact:
            return
        is_late = segment.settings.flush is not None  # what it counts may be in no disk (R81)
        if replica is None or is_late:
            host = self._world.hosts[name]
            if self._world.is_suspect(name) or is_in_memory(host, segment.segment_id):
                return
            tail = durable_tail(host, segment.segment_id, segment.end_offset)
        elif replica.base_offset >= 0:
            tail = replica.log.durable_tail
        else:
            return
        end = -1 if tail is None else tail.end_offset
        is_other = tail is not None and end == segment.end_offset
        is_other = is_other and tail.digest != segment.seal_digest  # type: ignore[union-attr]
        if end < segment.end_offset or is_other:
            self._note(
                f"I11: segment {segment.segment_id} is sealed at {segment.end_offset}, its copy on"
                f" node {node_id} ends at {end}{' with other bytes' * is_other}"
            )

    # --- I20: what start-up says of a log -------------------------------------------------------

    def on_judged(self, segment_id: int, damage: str) -> None:
        """A node that starts judges a replica; what a crash leaves is no damage."""
        process = PROCESS.get()
        if damage and process is not None and not self._world.is_suspect(process.name):
            self._note(f"I20: segment {segment_id} is UNKNOWN, its disk is sound: {damage}")

    def on_indexed(self, process: SimProcess | None, key: bytes, value: bytes) -> None:
        """An index says how far a file is durable, or written where that counts (R80): it never
        leads the file."""
        host = self._world.hosts.get(process.name) if process is not None else None
        if host is None:
            return
        if key.startswith(NOTE_KEY):
            segment_id = int.from_bytes(key[len(NOTE_KEY) :], "big")
            inode = host.disk.names.get(shared_file_name(segment_id))
            self._on_noted(segment_id, inode, int.from_bytes(value, "big"))
            return
        segment_id, generation = divmod(int.from_bytes(key, "big"), 1 << 16)
        suffix = f"/{segment_id:020d}.{generation}.log"
        named = (disk.named(suffix) for disk in host.disks)
        inode = next((each for each in named if each is not None), None)
        position = int.from_bytes(value[:8], "little")
        if inode is None or inode.is_durable(position):
            return
        is_late = any(row.flush for row in replica_rows(host, SegmentId(segment_id)))
        if not is_late or position > inode.size:
            self._note(f"I20: the index has segment {segment_id} durable to {position}, it is not")

    def _on_noted(self, number: int, inode: Inode | None, position: int) -> None:
        """An index says how far a shared file is durable."""
        if inode is not None and not inode.is_durable(position):
            self._note(f"I20: the index has shared file {number} durable to {position}, it is not")

    # --- I17, I18, I21, and the lease -----------------------------------------------------------

    def on_create(self, process: SimProcess | None, name: str) -> None:
        """A file is made, or gets its name."""
        self._created.add((process, name))

    def on_unlink(self, disk: SimDisk, process: SimProcess | None, name: str) -> None:
        """A replica's file goes: there is an order to delete it, or it was made just now."""
        if not name.startswith("segments/") or (process, name) in self._created:
            return
        if is_derived(name):
            return  # made of others, and to be made again
        for host in self._world.hosts.values():
            if disk in host.disks and name.partition(ASIDE)[0] not in files_to_delete(host):
                self._note(f"I17: {name} is deleted and nobody has ordered that")

    def on_freed(self, disk: SimDisk, name: str) -> None:
        """A shared file is about to go: no log that counts misses anything of it."""
        for host_name, host in self._world.hosts.items():
            if host.disk is disk and not self._world.is_suspect(host_name):
                for problem in shared_problems(host, name):
                    self._note(f"I17: {name} goes too early: {problem}")

    def on_transaction(self, coordinator_epoch: int, newest: int) -> None:
        """A metadata transaction was carried out."""
        if coordinator_epoch != newest:
            self._note(f"I18: coordinator epoch {coordinator_epoch} writes after {newest}")

    def on_sync(self, disk: SimDisk, process: SimProcess | None, *, is_done: bool) -> None:
        """A file is synced, or its disk refuses."""
        if process is None:
            return
        if not is_done:
            self._failed.add((process, id(disk)))
        elif (process, id(disk)) in self._failed:
            self._note("I21: it trusts a disk that has failed a sync")

    def on_heartbeat(self, session: Session) -> None:
        """A coordinator hears a node."""
        self._heartbeats_ms[session.node_id, session.incarnation] = self._now_ms()

    def on_lease(self, lease_ms: float) -> None:
        """A node believes that its lease is valid: a coordinator has heard it since."""
        node = self._this_node()
        heard_ms = self._heartbeats_ms.get((node.node_id, node.incarnation), -lease_ms)
        if self._now_ms() > heard_ms + lease_ms:
            self._note(f"lease: it counts on one that ended at {heard_ms + lease_ms:.3f} ms")


@contextmanager
def watch(world: "World", *, waits_for_all: bool = False) -> Iterator[Invariants]:
    """Collect the facts, and the broken invariants, from here to the end of the block.

    Args:
        world: All of it is looked at.
        waits_for_all: No record of it is acknowledged by a quorum.
    """
    seen = Invariants(world, waits_for_all=waits_for_all)
    with ExitStack() as stack:
        for owner, name, watched in _watched(seen):
            original = vars(owner)[name]
            stack.enter_context(mock.patch.object(owner, name, watched(original)))
        yield seen


Watched = tuple[type, str, Callable[[Any], Any]]


def _watched(seen: Invariants) -> list[Watched]:
    """Each function that is looked at, and what replaces it."""
    return [
        *((role, "_append", _appending(seen)) for role in (Leader, Follower)),
        (Checked, "step", stepping(seen.cores)),
        (NodeService, "fence", _fencing(seen)),
        (Ledger, "_commit", _committing(seen)),
        (SqliteStore, "txn", _transacting(seen)),
        (SimFileSystem, "open", _creating(seen)),
        (SimFileSystem, "rename", _renaming(seen)),
        (SimFileSystem, "unlink", _unlinking(seen)),
        (SimFile, "fdatasync", _syncing(seen)),
        (SimIndex, "write", _indexing(seen)),
        (StartUp, "judge", _judging(seen)),
        (SharedStartUp, "judge", _judging_shared(seen)),
        (LogJudge, "judge", _judging_in_database(seen)),
        (NodeSessions, "heartbeat", _sending_heartbeats(seen)),
        (Lease, "is_valid", _leasing(seen)),
        *handing_over(seen.hand_over),
        *tiering(seen.tiering),
    ]


def _appending(seen: Invariants) -> Callable[[Any], Any]:
    def replace(original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def append(self: Leader | Follower, *given: object) -> None:
            seen.on_append(self)
            original(self, *given)

        return append

    return replace


def _fencing(seen: Invariants) -> Callable[[Any], Any]:
    def replace(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        async def fence(self: NodeService, body: bytes, context: Any) -> bytes:
            answer: bytes = await original(self, body, context)
            seen.on_fenced(self._context.identity.node_id, body, answer)
            return answer

        return fence

    return replace


def _committing(seen: Invariants) -> Callable[[Any], Any]:
    def replace(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        async def commit(self: Ledger, change: Change) -> None:
            before = dict(self.state.segments)
            seen.before_commit(change, before)
            seen.retention.before_commit(change, self.state)
            await original(self, change)
            seen.on_commit(change, before)
            seen.retention.on_commit(change, before, self.state)
            seen.tiering.on_commit(change, self.state)

        return commit

    return replace


def _transacting(seen: Invariants) -> Callable[[Any], Any]:
    def replace(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        async def txn(self: SqliteStore, *given: Any) -> bool:
            is_done: bool = await original(self, *given)
            newest = self._db.execute("SELECT value FROM token").fetchone()[0]
            if is_done:
                seen.on_transaction(self._coordinator_epoch, int(newest))
            return is_done

        return txn

    return replace


def _creating(seen: Invariants) -> Callable[[Any], Any]:
    def replace(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def open_(self: SimFileSystem, name: str, *, create: bool = False) -> Any:
            file = original(self, name, create=create)
            if create:
                seen.on_create(self._process, name)
            return file

        return open_

    return replace


def _renaming(seen: Invariants) -> Callable[[Any], Any]:
    def replace(original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def rename(self: SimFileSystem, old: str, new: str) -> None:
            if new.endswith(GONE):
                seen.on_freed(self.disk, old)
            original(self, old, new)
            seen.on_create(self._process, new)

        return rename

    return replace


def _unlinking(seen: Invariants) -> Callable[[Any], Any]:
    def replace(original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def unlink(self: SimFileSystem, name: str) -> None:
            seen.on_unlink(self.disk, self._process, name)
            original(self, name)

        return unlink

    return replace


def _syncing(seen: Invariants) -> Callable[[Any], Any]:
    def replace(original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def fdatasync(self: SimFile) -> None:
            try:
                original(self)
            except StorageError:
                seen.on_sync(self._system.disk, self._system._process, is_done=False)
                raise
            seen.on_sync(self._system.disk, self._system._process, is_done=True)

        return fdatasync

    return replace


def _indexing(seen: Invariants) -> Callable[[Any], Any]:
    def replace(original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def write(self: SimIndex, puts: Iterable[tuple[str, bytes, bytes]]) -> None:
            puts = list(puts)
            for family, key, value in puts:
                if family == "durable":
                    seen.on_indexed(self._process, key, value)
            original(self, puts)

        return write

    return replace


def _judging(seen: Invariants) -> Callable[[Any], Any]:
    def replace(original: Callable[..., FileVerdict]) -> Callable[..., FileVerdict]:
        @wraps(original)
        def judge(self: StartUp, log: KnownLog) -> FileVerdict:
            verdict = original(self, log)
            seen.on_judged(log.identity.segment_id, verdict.damage)
            return verdict

        return judge

    return replace


def _judging_shared(seen: Invariants) -> Callable[[Any], Any]:
    def replace(original: Callable[..., Judged]) -> Callable[..., Judged]:
        @wraps(original)
        def judge(self: SharedStartUp, logs: Sequence[KnownLog], *given: Any) -> Judged:
            judged = original(self, logs, *given)
            for log, verdict in zip(logs, judged.verdicts, strict=True):
                seen.on_judged(log.identity.segment_id, verdict.damage)
            return judged

        return judge

    return replace


def _judging_in_database(seen: Invariants) -> Callable[[Any], Any]:
    def replace(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def judge(self: LogJudge, known: KnownLog) -> Any:
            log, found = original(self, known)
            seen.on_judged(known.identity.segment_id, found.damage)
            return log, found

        return judge

    return replace


def _sending_heartbeats(seen: Invariants) -> Callable[[Any], Any]:
    def replace(original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def heartbeat(self: NodeSessions, session: Session, request: Any) -> None:
            seen.on_heartbeat(session)
            original(self, session, request)

        return heartbeat

    return replace


def _leasing(seen: Invariants) -> Callable[[Any], Any]:
    def replace(original: property) -> property:
        def is_valid(self: Lease) -> bool:
            is_so: bool = original.__get__(self)
            if is_so:
                seen.on_lease(self.length_ms)
            return is_so

        return property(is_valid)

    return replace
