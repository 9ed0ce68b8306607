"""The index as the engine uses it: derived data. To lose it costs time, never a replica or a node.

It may lag behind the files and never leads them (R55). A batch that finds no room is written with a
later one. A damaged database is removed and an empty one created, at start-up and at run time. The
durable end of each log is known here and written at once; points come back with new appends and
with the scans of the next start. Until then look-ups in older parts take longer.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

from icecore.errors import SHORTAGES, IcecoreError, StorageError
from icecore.process.log import event
from icecore_node.ports import Index
from icecore_node.storage.files.locks import Lock
from icecore_node.storage.index.points import Put

T = TypeVar("T")

_LAGGING_PUTS_MAX = 1000
_log = logging.getLogger(__name__)


class DerivedIndex:
    """``Index`` of the ports without ``close``; never raises for what happened to it.

    Args:
        index: The database.
        standing: The durable entries of all logs, to begin a new one with.
    """

    def __init__(self, index: Index, standing: Callable[[], list[Put]]) -> None:
        self._index = index
        self._standing = [standing]
        self._lock = Lock()
        """Over each call, so that nobody uses a database that is being thrown away."""
        self._flush_lock = Lock()
        """Over ``flush``, which waits for the disk; taken after the other one, if both are."""
        self._lagging: list[Put] = []
        self._shortage: IcecoreError | None = None
        """Why they lag."""
        self._is_off = False
        """It could not be begun anew; tried again with each flush."""
        self.lag_count = 0
        """Batches that found no room; they are retried with later ones."""
        self.rebuilds = 0
        """How often it was begun anew."""

    def also_stands(self, standing: Callable[[], list[Put]]) -> None:
        """A new database begins with these, too."""
        self._standing.append(standing)

    def write(self, puts: Iterable[Put]) -> None:
        """As ``Index.write``, or later."""
        with self._lock:
            self._write([*self._lagging, *puts])

    def _write(self, puts: list[Put]) -> None:
        self._lagging = []
        if self._is_off:
            return
        try:
            self._index.write(puts)
        except SHORTAGES as error:
            self._shortage = error
            # Acks go on. A later durable entry covers the ones that are dropped, and a missing
            # point only makes a look-up scan further.
            self.lag_count += 1
            self._lagging = puts[-_LAGGING_PUTS_MAX:]
            if self.lag_count == 1:
                event(_log, logging.ERROR, "index_lags", error=error)
        except StorageError as error:
            self._begin_anew(error, puts)

    def write_now(self, puts: Sequence[Put], life: int) -> bool:
        """As ``Index.write``, never later. Raises shortages.

        False, and nothing is written, when the database was begun anew since ``rebuilds`` was
        ``life``: what these entries build on is gone.
        """
        with self._lock:
            if self._is_off or self.rebuilds != life:
                return False
            try:
                self._index.write(puts)
            except SHORTAGES:
                raise
            except StorageError as error:
                self._begin_anew(error)
                return False
            return True

    def get(self, family: str, key: bytes) -> bytes | None:
        """As ``Index.get``; None also when the value is lost. Raises OutOfResourcesError."""
        return self._read(lambda: self._index.get(family, key))

    def floor(self, family: str, key: bytes, lower: bytes) -> tuple[bytes, bytes] | None:
        """As ``Index.floor``; None also when it is lost. Raises OutOfResourcesError."""
        return self._read(lambda: self._index.floor(family, key, lower))

    def page(
        self, family: str, lower: bytes, upper: bytes, count: int
    ) -> list[tuple[bytes, bytes]]:
        """The first pairs of ``Index.scan``; none also when they are lost. Raises
        OutOfResourcesError."""
        found = self._read(lambda: list(islice(self._index.scan(family, lower, upper), count)))
        return found or []

    def _read(self, look: Callable[[], T | None]) -> T | None:
        with self._lock:
            if self._is_off:
                return None
            try:
                return look()
            except SHORTAGES:
                raise
            except StorageError as error:
                self._begin_anew(error)
                return None

    def delete_range(self, family: str, lower: bytes, upper: bytes) -> None:
        """As ``Index.delete_range``. Raises shortages, because it can't be done later."""
        with self._lock:
            # What was to be written before must not come back after it.
            self._lagging = [
                put for put in self._lagging if put[0] != family or not lower <= put[1] < upper
            ]
            if self._is_off:
                return
            try:
                self._index.delete_range(family, lower, upper)
            except SHORTAGES:
                raise
            except StorageError as error:
                self._begin_anew(error)

    def flush(self) -> None:
        """As ``Index.flush``, including what lags. Raises shortages."""
        with self._lock:
            if self._lagging:
                self._write(self._lagging)
            if self._lagging and self._shortage is not None:
                raise self._shortage
            rebuilds = self.rebuilds
        try:
            if self._is_off:
                raise StorageError("it could not be begun anew before")
            with self._flush_lock:
                self._index.flush()
        except SHORTAGES:
            raise
        except StorageError as error:
            with self._lock:
                if self.rebuilds == rebuilds:
                    self._begin_anew(error)

    def _begin_anew(self, why: IcecoreError, puts: Sequence[Put] = ()) -> None:
        """Replace the database by an empty one; ``puts`` are written last.

        The caller holds the lock, so that no older entry is written afterwards."""
        event(_log, logging.ERROR, "index_rebuilt", error=why)
        self.rebuilds += 1
        try:
            with self._flush_lock:
                self._index.wipe()
            self._is_off = False
            standing = [put for puts_of in self._standing for put in puts_of()]
            self._index.write([*standing, *puts])
        except IcecoreError as error:
            self._is_off = True
            event(_log, logging.ERROR, "index_off", error=error)
