"""Seeded mistakes about shortages and the derived index; see ``mistakes``."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from icecore.errors import IcecoreError, NotReplicaError, OutOfResourcesError
from icecore_node.ports import File, SyncFailedError
from icecore_node.replica.reading import ReplicaReading
from icecore_node.replica.replica import Replica
from icecore_node.storage.batches.batch_scan import BatchScan
from icecore_node.storage.control.fail_stop import FailStop
from icecore_node.storage.engine import SegmentIdentity
from icecore_node.storage.index.derived_index import DerivedIndex
from icecore_node.storage.index.points import Put, key_prefix, pack_durable
from icecore_node.storage.segment_engine.start_up import FileVerdict, StartUp
from tests.simulation.mistakes import Mistake, patch

T = TypeVar("T")


def shortage_is_a_failed_sync() -> Mistake:
    """R52: a folder that can't be opened to sync it counts as one whose sync has failed."""
    sync = FailStop.sync

    def wrong(self: FailStop, segment_ids: Sequence[int], call: Callable[[], None]) -> None:
        def tried() -> None:
            try:
                call()
            except OutOfResourcesError as error:
                raise SyncFailedError(str(error)) from error

        sync(self, segment_ids, tried)

    return patch(FailStop, "sync", wrong)


def shortage_is_damage() -> Mistake:
    """R52: a file that can't be opened for lack of descriptors is damaged."""
    read = ReplicaReading._guarded

    async def wrong(
        self: ReplicaReading, replica: Replica, function: Callable[..., T], *args: object
    ) -> T:
        try:
            return await read(self, replica, function, *args)
        except OutOfResourcesError as error:
            self._damage.condemn(replica, str(error))
            raise NotReplicaError(str(error)) from error

    return patch(ReplicaReading, "_guarded", wrong)


@contextmanager
def recovery_index_first() -> Iterator[None]:
    """R55 and, enough by itself, R53: recovery tells the index what it saw before it syncs the
    file, and does not sync it before it looks."""
    judge_stop = StartUp._judge_stop

    def wrong(
        self: StartUp,
        identity: SegmentIdentity,
        file: File,
        scan: BatchScan,
        size: int,
        verdict: FileVerdict,
    ) -> bool:
        self._index.write([pack_durable(key_prefix(identity), scan.position, scan.tail)])
        return judge_stop(self, identity, file, scan, size, verdict)

    def look(self: StartUp, identity: SegmentIdentity, file: File, durable_position: int) -> None:
        pass

    with patch(StartUp, "_judge_stop", wrong), patch(StartUp, "_show_disk", look):
        yield


def index_rot_ends_the_node() -> Mistake:
    """R55: a damaged index is an error for whoever meets it."""

    def wrong(self: DerivedIndex, why: IcecoreError, puts: Sequence[Put] = ()) -> None:
        raise why

    return patch(DerivedIndex, "_begin_anew", wrong)
