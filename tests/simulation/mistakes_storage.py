"""Seeded mistakes of the storage engine; see ``mistakes``."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from icecore.codec import batch
from icecore.errors import StorageError
from icecore_node.ports import FileSystem
from icecore_node.storage.engine import KnownLog
from icecore_node.storage.index.points import forget_from, key_prefix, pack_durable
from icecore_node.storage.port import FoundReplica
from icecore_node.storage.replica_store import ReplicaStore
from icecore_node.storage.segment_engine import start_up
from icecore_node.storage.segment_engine.group_commit import GroupCommit, _Part
from icecore_node.storage.segment_engine.segment_engine import SegmentEngine
from icecore_node.storage.segment_engine.segment_log import SegmentLog
from icecore_node.storage.segment_engine.segment_names import ASIDE, file_name
from icecore_node.storage.segment_engine.start_up import FileVerdict, StartUp
from tests.simulation.disk import SimFileSystem
from tests.simulation.mistakes import Mistake, patch
from tests.simulation.mistakes_registry import log_may_go_back


def ack_before_sync() -> Mistake:
    """Principle "acked means durable": groups are not synced."""
    return patch(GroupCommit, "_sync", lambda self, logs: None)


def index_before_data() -> Mistake:
    """I20, and what start-up builds on: the index says that bytes are durable before they are."""
    round_ = GroupCommit._round

    def wrong(self: GroupCommit, parts: list[_Part]) -> None:
        puts = []
        for part in parts:
            if part.requests:
                end = part.log.end[1] + part.total_bytes
                puts.append(pack_durable(part.log.prefix, end, part.requests[-1].tail))
        self._index.write(puts)
        round_(self, parts)

    return patch(GroupCommit, "_round", wrong)


def no_folder_sync() -> Mistake:
    """R34: new files are not durable in their folder."""
    return patch(SimFileSystem, "sync_dir", lambda self, name: self.check())


@contextmanager
def sync_is_retried() -> Iterator[None]:
    """I21: after a failed sync another one is tried, which finds nothing left to write."""

    def sync(self: GroupCommit, logs: list[SegmentLog]) -> None:
        for log in logs:
            sync_file(None, log)

    def sync_file(_: object, log: SegmentLog) -> None:
        try:
            log.file.fdatasync()
        except StorageError:
            log.file.fdatasync()

    with patch(GroupCommit, "_sync", sync), patch(SegmentEngine, "_sync_file", sync_file):
        yield


def page_cache_is_believed() -> Mistake:
    """R53: a start takes what it reads for what is on disk."""
    return patch(StartUp, "_show_disk", lambda self, identity, file, durable_position: None)


def nothing_lies_behind() -> Mistake:
    """R53: a start looks at nothing behind the durable end of a log."""
    return patch(start_up, "is_blank", lambda file, position, size: True)


@contextmanager
def damage_is_cut_off() -> Iterator[None]:
    """R40 and, enough by itself, R59: a log that is broken in the middle is cut there and
    counts as intact; nobody notices that it was longer once."""
    judge = StartUp.judge

    def wrong(self: StartUp, log: KnownLog) -> FileVerdict:
        verdict = judge(self, log)
        if verdict.damage.startswith(("mid-log damage", "lost durable tail")):
            verdict.damage, verdict.why = "", "clean"
            identity = log.identity
            forget_from(self._index, key_prefix(identity), verdict.position, verdict.tail)
            file = self._fs.open(file_name(identity))
            file.truncate(verdict.position)
            file.fdatasync()
            verdict.size_bytes = file.size()
        return verdict

    with patch(StartUp, "judge", wrong), log_may_go_back():
        yield


def cut_at_watermark() -> Mistake:
    """R11: a log is cut at start to the high watermark that its node knew."""
    start_up = ReplicaStore.start_up

    def wrong(self: ReplicaStore) -> list[FoundReplica]:
        found = start_up(self)
        for replica in found:
            identity = replica.identity
            if not replica.intact or replica.sealed_end_offset is not None:
                continue
            if identity.base_offset >= 0:
                end = max(identity.base_offset, replica.tail.max_known_high_watermark)
                end = min(end, replica.tail.end_offset)
                replica.tail = self.truncate(identity.segment_id, end)
                headers = [(raw, batch.parse_header(raw)) for raw in replica.headers]
                replica.headers = [raw for raw, header in headers if header.end_offset <= end]
        return found

    return patch(ReplicaStore, "start_up", wrong)


def unknown_files_deleted() -> Mistake:
    """I17: what has no record is removed at start."""

    def remove(file_system: FileSystem, known: set[str]) -> None:
        for topic in file_system.list_dir("segments"):
            for partition in file_system.list_dir(f"segments/{topic}"):
                folder = f"segments/{topic}/{partition}"
                for name in file_system.list_dir(folder):
                    if f"{folder}/{name}" not in known and ASIDE not in name:
                        file_system.unlink(f"{folder}/{name}")

    return mock.patch(
        "icecore_node.storage.segment_engine.segment_engine.report_unknown_files", remove
    )
