"""Promises of a node: epochs of segments, and the highest coordinator token that it obeyed.

A lost promise is a lost fence and therefore lost data. All promises are kept in memory, too,
because they are read all the time.
"""

import sqlite3
from collections.abc import Iterable, Sequence

from icecore.errors import FencedError
from icecore.model import NO_EPOCH, Epoch, SegmentId, Token
from icecore_node.storage.control.control_database import ControlDatabase

_PUT_PROMISE = "INSERT OR REPLACE INTO promises VALUES (?, ?)"


class Promises:
    """The promises of one node; thread-safe."""

    def __init__(self, database: ControlDatabase) -> None:
        self._database = database
        self._epochs: dict[SegmentId, Epoch] = dict(
            database.load("SELECT segment_id, epoch FROM promises")
        )
        self._max_token = Token(database.get_number("max_token"))

    @property
    def max_token(self) -> Token:
        """The highest coordinator token seen."""
        return self._max_token

    def epoch_of(self, segment_id: SegmentId) -> Epoch:
        """The highest epoch promised for a segment, 0 when none."""
        return self._epochs.get(segment_id, NO_EPOCH)

    def persist(self, promises: Sequence[tuple[SegmentId, Epoch]], token: Token) -> None:
        """Store (segment_id, promised_epoch) pairs and the coordinator's token in one sync.

        Raises:
            FencedError: A higher promise or token is stored; then nothing is changed.
        """
        with self._database.lock:
            self.check_token(token)
            for segment_id, epoch in promises:
                stored = self.epoch_of(segment_id)
                if epoch < stored:
                    raise FencedError(
                        f"segment {segment_id}: epoch {stored} is promised, {epoch} is stale",
                        segment_id=segment_id,
                        epoch=stored,
                    )
            is_known = all(self._epochs.get(one) == epoch for one, epoch in promises)
            if is_known and token == self._max_token:
                return

            def change(connection: sqlite3.Connection) -> None:
                put_epochs(connection, promises)
                put_token(connection, token)

            self._database.commit(change)
            self.note(promises, token)

    def reset_token(self, token: Token) -> None:
        """A person's word: the highest token seen is this one. For ``offline.py`` only."""
        with self._database.lock:
            self._database.commit(lambda connection: put_token(connection, token))
            self._max_token = token

    def reset_epoch(self, segment_id: SegmentId, epoch: Epoch) -> None:
        """A person's word: this epoch is promised and no higher one. For ``offline.py`` only."""
        with self._database.lock:
            promise = [(segment_id, epoch)]
            self._database.commit(lambda connection: put_epochs(connection, promise))
            self._epochs.update(promise)

    # --- for commits of other parts, which hold the lock ---------------------------------------

    def check_token(self, token: Token) -> None:
        """Raises FencedError for a token that is older than one seen."""
        if token < self._max_token:
            raise FencedError(
                f"coordinator token {token} is stale, {self._max_token} was seen",
                token=self._max_token,
            )

    def higher(self, promises: Iterable[tuple[SegmentId, Epoch]]) -> dict[SegmentId, Epoch]:
        """Those that are above what is promised."""
        return {one: epoch for one, epoch in promises if epoch > self.epoch_of(one)}

    def note(self, promises: Iterable[tuple[SegmentId, Epoch]], token: Token | None = None) -> None:
        """These were committed."""
        self._epochs.update(promises)
        if token is not None:
            self._max_token = token


def put_epochs(connection: sqlite3.Connection, promises: Iterable[tuple[SegmentId, Epoch]]) -> None:
    """Within a transaction."""
    connection.executemany(_PUT_PROMISE, promises)


def put_token(connection: sqlite3.Connection, token: Token) -> None:
    """Within a transaction."""
    values = ("max_token", str(token).encode())
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", values)
