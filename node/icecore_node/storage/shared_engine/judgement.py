"""Start-up judgement of one log: clean, torn, damaged or lost, and what it really holds.

Frames say where its runs are; here its batches are walked, run by run. What was on disk must be
there, as far as headers tell and up to where the log must end: else it is damaged, and nothing of
it is cut. The bodies are checked of what no later frame proves, and there the first batch that is
not right ends the log. What is wrong with one log costs no other one anything (R55).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from icecore.errors import SHORTAGES, CorruptBatchError, IcecoreError
from icecore_node.storage.batches.batch_log import with_high_watermark
from icecore_node.storage.batches.batch_runs import walk_to
from icecore_node.storage.batches.batch_scan import BatchScan, empty_tail
from icecore_node.storage.engine import NO_TAIL, KnownLog, LogTail, SegmentIdentity
from icecore_node.storage.shared_engine.frames import NO_BATCHES
from icecore_node.storage.shared_engine.shared_log import Bytes, FileRun
from icecore_node.storage.shared_engine.trails import FoundRun, Trail


@dataclass(slots=True)
class CopyVerdict:
    """The judgement of one log. ``damage`` is empty for an intact log."""

    tail: LogTail = NO_TAIL
    why: str = "clean"
    damage: str = ""
    headers: list[bytes] = field(default_factory=list)
    runs: list[FileRun] = field(default_factory=list)
    """Runs of correct batches, from the first batch on."""

    def damaged(self, damage: str) -> "CopyVerdict":
        """It is."""
        self.damage = self.why = damage
        return self


class OneFile:
    """``Readable`` of one file among shared ones."""

    def __init__(self, files: Bytes, number: int) -> None:
        self._files = files
        self._number = number

    def pread(self, length: int, position: int) -> bytes:
        """See ``Readable.pread``."""
        return self._files.pread(self._number, length, position)


def judge(files: Bytes, log: KnownLog, trail: Trail | None) -> CopyVerdict:
    """Examine one log; changes nothing on disk.

    Args:
        files: The shared files.
        log: As it is remembered.
        trail: What files tell of it; None when none does.

    Raises:
        OutOfResourcesError, OutOfSpaceError: It could not be looked at.
    """
    verdict = CopyVerdict()
    try:
        if log.identity.base_offset >= 0:
            verdict.tail = empty_tail(log.identity, log.start_timestamp_ms)
        if trail is None:
            return verdict.damaged("it is missing: no shared file tells of it")
        if trail.is_suspect:
            return verdict.damaged("it may have lost its end: a part of a shared file is damaged")
        if log.identity.base_offset < 0:
            verdict.why = "prepared"
            return verdict
        _examine(files, log, trail, verdict)
    except SHORTAGES:
        raise
    except IcecoreError as error:
        return verdict.damaged(f"it cannot be read: {error}")
    return verdict


def _examine(files: Bytes, log: KnownLog, trail: Trail, verdict: CopyVerdict) -> None:
    if log.sealed is not None:
        trail.cut(log.sealed.tail.end_offset)
    for run in trail.runs:
        if run.start_offset != verdict.tail.end_offset:
            verdict.damaged(
                f"offsets {verdict.tail.end_offset} to {run.start_offset} are not where a shared"
                " file should have them"
            )
            return
        stop = _walk(files, log.identity, run, verdict)
        if not stop:
            continue
        where = f"file {run.number}, {stop}"
        if run.is_synced:
            verdict.damaged(f"mid-log damage in {where}")
            return
        verdict.why = f"torn tail cut in {where}"
        break
    tail = verdict.tail
    if log.sealed is not None:
        if (tail.end_offset, tail.digest) != (
            log.sealed.tail.end_offset,
            log.sealed.tail.digest,
        ):
            verdict.damaged(f"sealed log broken at {tail.end_offset}")
        else:
            verdict.tail, verdict.headers = log.sealed.tail, []
        return
    end_offset, crc32c = trail.end_offset, trail.last_header_crc32c
    if tail.end_offset < end_offset:
        verdict.damaged(f"lost durable tail: it ends at {tail.end_offset} and not at {end_offset}")
    elif tail.end_offset == end_offset != NO_BATCHES and crc32c not in (0, tail.last_header_crc32c):
        verdict.damaged(f"the batch before {end_offset} is another one than was written")
    verdict.tail = with_high_watermark(tail, trail.high_watermark)


def _walk(files: Bytes, identity: SegmentIdentity, run: FoundRun, verdict: CopyVerdict) -> str:
    """Add the batches of a run. Returns why it ends before it should, empty if it doesn't."""
    file, end_position = OneFile(files, run.number), run.position + run.length
    start = run.position
    if run.from_offset is not None:
        try:
            start, _, _ = walk_to(file, start, end_position, run.from_offset)
        except CorruptBatchError as error:
            return f"position {start}: {error}"
    scan = BatchScan(
        file, identity, start, verdict.tail, end_position, with_bodies=not run.is_synced
    )
    position = start
    for found in scan:
        if found.header.end_offset > run.stop_offset:
            scan.stop = f"no batch ends at {run.stop_offset}"
            break
        verdict.headers.append(found.header_bytes)
        verdict.tail, position = scan.tail, scan.position
        if scan.tail.end_offset == run.stop_offset:
            break
    tail = verdict.tail
    if tail.end_offset > run.start_offset:
        kept = FileRun(
            run.start_offset,
            tail.end_offset,
            run.number,
            start,
            position - start,
            tail.max_append_timestamp_ms,
        )
        verdict.runs.append(kept)
    if tail.end_offset < run.stop_offset:
        return f"position {position}: {scan.stop}"
    return ""


def span_of(files: Bytes, run: FoundRun) -> tuple[int, int]:
    """(position, end position) of its part of the log, as far as headers tell; else all of it.

    Raises:
        OutOfResourcesError: It could not be looked at.
    """
    file, start, end = OneFile(files, run.number), run.position, run.position + run.length
    try:
        if run.cut_offset is not None:
            stop, _, _ = walk_to(file, start, end, run.cut_offset)
            end = stop
        if run.from_offset is not None:
            start, _, _ = walk_to(file, start, end, run.from_offset)
    except SHORTAGES:
        raise
    except IcecoreError:
        return run.position, run.position + run.length
    return start, end


def provable(
    files: Bytes, log: KnownLog, runs: Sequence[FoundRun], start: LogTail
) -> tuple[LogTail, list[FileRun]]:
    """Return tail and runs of the part of a log that CRCs and chain prove from its first batch on.

    Bodies are checked also where frames say that batches were on disk.
    """
    verdict = CopyVerdict(tail=start)
    for run in runs:
        if run.start_offset != verdict.tail.end_offset:
            break
        try:
            if _walk(files, log.identity, replace(run, is_synced=False), verdict):
                break
        except SHORTAGES:
            raise
        except IcecoreError:
            break  # what can't be read is not right
    return verdict.tail, verdict.runs
