"""The start of shared files: all are read back, and each log is judged by what they tell together.

What is read is the disk, not what an earlier process left in the page cache when a sync had failed
(R53): each file is synced first, and forgotten from where it is not known to be on disk. A file
that can't be read, or that is noted and not here, is lost: then every log may have lost its end of
which nothing is told later.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from icecore.errors import SHORTAGES, StorageError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore_node.ports import DiskFailedError
from icecore_node.storage.control.fail_stop import FailStop
from icecore_node.storage.engine import KnownLog, SegmentIdentity
from icecore_node.storage.shared_engine.file_scan import ScannedFile, scan_file
from icecore_node.storage.shared_engine.judgement import CopyVerdict, judge
from icecore_node.storage.shared_engine.shared_files import SharedFile, SharedFiles
from icecore_node.storage.shared_engine.trails import FoundRun, LogKey, Trail, Trails

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Judged:
    """All logs."""

    verdicts: list[CopyVerdict] = field(default_factory=list)
    """Verdicts on the known logs, in their order."""
    untrusted: dict[SegmentId, list[FoundRun]] = field(default_factory=dict)
    """Runs in the place of logs that are not to be used."""
    leftovers: dict[LogKey, bool] = field(default_factory=dict)
    """Logs without a record, and whether each was confirmed."""
    lost: list[int] = field(default_factory=list)
    """Numbers of files."""


class SharedStartUp:
    """Reads the shared files of one data folder, once."""

    def __init__(self, files: SharedFiles, fail_stop: FailStop) -> None:
        self._files = files
        self._fail_stop = fail_stop

    def judge(self, logs: Sequence[KnownLog], untrusted: Sequence[SegmentIdentity]) -> Judged:
        """Changes nothing on disk.

        Raises:
            OutOfResourcesError: Something could not be looked at.
            DiskFailedError: A sync failed; all unsealed logs are condemned.
        """
        judged = Judged()
        unsealed = [log.identity.segment_id for log in logs if log.sealed is None]
        trails = self._trails(unsealed, judged.lost)
        for log in logs:
            trail = trails.take(_key(log.identity))
            verdict = judge(self._files, log, trail)
            judged.verdicts.append(verdict)
            if verdict.damage:
                _keep(judged, log.identity, trail)
        for identity in untrusted:
            _keep(judged, identity, trails.take(_key(identity)))
        for key, trail in trails.rest().items():
            judged.leftovers[key] = bool(trail.runs) or trail.is_confirmed
        return judged

    def _trails(self, unsealed: Sequence[SegmentId], lost: list[int]) -> Trails:
        trails, noted = Trails(), self._files.noted()
        here = {file.number: file for file in self._files.all()}
        for number in sorted({*here, *noted}):
            file = here.get(number)
            scanned = None
            if file is not None:
                scanned = self._scan(file, noted.get(number, 0), unsealed)
            if file is None or scanned is None:
                event(_log, logging.ERROR, "shared_file_lost", number=number)
                trails.lost_file()
                lost.append(number)
                continue
            # What is passed over here must not be taken for durable by the next start.
            file.end_position = min(file.end_position, trails.add_file(number, scanned))
        return trails

    def _scan(
        self, file: SharedFile, noted_position: int, unsealed: Sequence[SegmentId]
    ) -> ScannedFile | None:
        try:
            with file.handle.using() as opened:
                self._fail_stop.sync(unsealed, opened.fdatasync)
                opened.drop_cached(noted_position)
                scanned = scan_file(opened, file.number, noted_position)
                file.end_position = min(scanned.end_position, opened.size())
                return scanned
        except (DiskFailedError, *SHORTAGES):
            raise
        except StorageError as error:
            event(_log, logging.ERROR, "shared_file_unreadable", number=file.number, error=error)
            return None


def _key(identity: SegmentIdentity) -> LogKey:
    return identity.segment_id, identity.generation


def _keep(judged: Judged, identity: SegmentIdentity, trail: Trail | None) -> None:
    if trail is not None:
        judged.untrusted[identity.segment_id] = trail.runs
