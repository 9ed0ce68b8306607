"""Promises of a node: epochs of segments, and the highest coordinator epoch that it obeyed.

A lost promise is a lost fence and therefore lost data. All promises are kept in memory, too,
because they are read all the time.
"""

import sqlite3
from collections.abc import Iterable, Sequence

from icecore.errors import FencedError
from icecore.model import NO_EPOCH, CoordinatorEpoch, Epoch, SegmentId
from icecore_node.storage.control.control_database import ControlDatabase

_PUT_PROMISE = "INSERT OR REPLACE INTO promises VALUES (?, ?)"


class Promises:
    """The promises of one node; thread-safe."""

    def __init__(self, database: ControlDatabase) -> None:
        self._database = database
        self._epochs: dict[SegmentId, Epoch] = dict(
            database.load("SELECT segment_id, epoch FROM promises")
        )
        self._max_coordinator_epoch = CoordinatorEpoch(database.get_number("max_token"))

    @property
    def max_coordinator_epoch(self) -> CoordinatorEpoch:
        """The highest coordinator epoch seen."""
        return self._max_coordinator_epoch

    def epoch_of(self, segment_id: SegmentId) -> Epoch:
        """The highest epoch promised for a segment, 0 when none."""
        return self._epochs.get(segment_id, NO_EPOCH)

    def persist(
        self, promises: Sequence[tuple[SegmentId, Epoch]], coordinator_epoch: CoordinatorEpoch
    ) -> None:
        """Store (segment_id, promised_epoch) pairs and the coordinator's epoch in one sync.

        Raises:
            FencedError: A higher promise or coordinator epoch is stored; then nothing is changed.
        """
        with self._database.lock:
            self.check_coordinator_epoch(coordinator_epoch)
            for segment_id, epoch in promises:
                stored = self.epoch_of(segment_id)
                if epoch < stored:
                    raise FencedError(
                        f"segment {segment_id}: epoch {stored} is promised, {epoch} is stale",
                        segment_id=segment_id,
                        epoch=stored,
                    )
            is_known = all(self._epochs.get(one) == epoch for one, epoch in promises)
            if is_known and coordinator_epoch == self._max_coordinator_epoch:
                return

            def change(connection: sqlite3.Connection) -> None:
                put_epochs(connection, promises)
                put_coordinator_epoch(connection, coordinator_epoch)

            self._database.commit(change)
            self.note(promises, coordinator_epoch)

    def reset_coordinator_epoch(self, coordinator_epoch: CoordinatorEpoch) -> None:
        """A person's word: the highest coordinator epoch seen is this one. For ``offline.py``
        only."""
        with self._database.lock:
            self._database.commit(
                lambda connection: put_coordinator_epoch(connection, coordinator_epoch)
            )
            self._max_coordinator_epoch = coordinator_epoch

    def reset_epoch(self, segment_id: SegmentId, epoch: Epoch) -> None:
        """A person's word: this epoch is promised and no higher one. For ``offline.py`` only."""
        with self._database.lock:
            promise = [(segment_id, epoch)]
            self._database.commit(lambda connection: put_epochs(connection, promise))
            self._epochs.update(promise)

    # --- for commits of other parts, which hold the lock ---------------------------------------

    def check_coordinator_epoch(self, coordinator_epoch: CoordinatorEpoch) -> None:
        """Raises FencedError for a coordinator epoch that is older than one seen."""
        if coordinator_epoch < self._max_coordinator_epoch:
            raise FencedError(
                f"coordinator epoch {coordinator_epoch} is stale, "
                f"{self._max_coordinator_epoch} was seen",
                coordinator_epoch=self._max_coordinator_epoch,
            )

    def higher(self, promises: Iterable[tuple[SegmentId, Epoch]]) -> dict[SegmentId, Epoch]:
        """Those that are above what is promised."""
        return {one: epoch for one, epoch in promises if epoch > self.epoch_of(one)}

    def note(
        self,
        promises: Iterable[tuple[SegmentId, Epoch]],
        coordinator_epoch: CoordinatorEpoch | None = None,
    ) -> None:
        """These were committed."""
        self._epochs.update(promises)
        if coordinator_epoch is not None:
            self._max_coordinator_epoch = coordinator_epoch


def put_epochs(connection: sqlite3.Connection, promises: Iterable[tuple[SegmentId, Epoch]]) -> None:
    """Within a transaction."""
    connection.executemany(_PUT_PROMISE, promises)


def put_coordinator_epoch(
    connection: sqlite3.Connection, coordinator_epoch: CoordinatorEpoch
) -> None:
    """Within a transaction."""
    values = ("max_token", str(coordinator_epoch).encode())
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", values)
