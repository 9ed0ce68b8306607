"""Seeded mistakes of shared files; see ``mistakes``. What a world meets too rarely is noticed by
random lives of the engine alone (``tests/unit/node/storage/shared_engine``)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from icecore_node.storage.shared_engine import judgement
from icecore_node.storage.shared_engine.compaction import Compaction, Copy
from icecore_node.storage.shared_engine.judgement import CopyVerdict
from icecore_node.storage.shared_engine.lane import Lane, _Writing
from icecore_node.storage.shared_engine.shared_engine import SharedEngine
from icecore_node.storage.shared_engine.shared_files import SharedFile, SharedFiles
from icecore_node.storage.shared_engine.trails import Trail
from tests.simulation.mistakes import Mistake, patch
from tests.simulation.mistakes_registry import log_may_go_back


def shared_group_not_synced() -> Mistake:
    """Principle "acked means durable": groups are written and not synced."""

    def write(self: Lane, writing: _Writing, _: object) -> None:
        with writing.to.file.handle.using() as opened:
            opened.pwritev(writing.buffers, writing.to.file.end_position)

    return patch(Lane, "_write", write)


def shared_file_freed_too_early() -> Mistake:
    """I17: a shared file goes although a log has batches in it."""
    remove_dead = SharedFiles.remove_dead

    def wrong(self: SharedFiles) -> bool:
        for file in self.all():
            if not file.is_appended:
                file.live.clear()
        return remove_dead(self)

    return patch(SharedFiles, "remove_dead", wrong)


def dead_batches_come_back() -> Mistake:
    """R11: a frame that says where a log stands does not cut what was found behind that."""
    return patch(Trail, "cut", lambda self, end_offset: None)


def cut_is_not_told() -> Mistake:
    """R11: a log is cut in memory only."""

    def truncate(self: SharedEngine, segment_id: int, end_offset: int) -> Any:
        log = self.reader.find(segment_id)
        tail, position = self.reader.cut_at(log, end_offset)
        log.rewind(tail, position)
        return tail

    return patch(SharedEngine, "truncate", truncate)


@contextmanager
def shared_damage_condemns_nobody() -> Iterator[None]:
    """R40 and, enough by itself, R59: a log that is broken in a shared file ends there."""
    judge = judgement.judge

    def wrong(*given: Any) -> CopyVerdict:
        verdict = judge(*given)
        verdict.damage = ""
        return verdict

    with (
        mock.patch("icecore_node.storage.shared_engine.start_up.judge", wrong),
        log_may_go_back(),
    ):
        yield


def copy_forgets_a_run() -> Mistake:
    """I17: of what is copied out of an old file the last run is left out, and counts as copied."""
    moved = Compaction._moved

    def wrong(self: Compaction, copy: Copy, file: SharedFile, position: int) -> None:
        moved(self, copy, file, position)
        copy.old.live.pop(copy.entry.segment_id, None)

    return patch(Compaction, "_moved", wrong)


def copy_is_not_told() -> Mistake:
    """I17: what was copied is not found again after the old file has gone."""
    return patch(Trail, "copied", lambda self, copy: None)
