"""Decode the batches of a consumer. At one that it cannot decode, stop or go on behind it.

Nodes decode what is produced and refuse such batches; older ones may be stored. A consumer that
stops goes on only after a ``seek``, never by iterating again, so that no record is skipped in
silence.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from icecore.client.consume.reader import Chunk, Reader
from icecore.codec.columns import BatchColumns
from icecore.codec.decoding import decode
from icecore.codec.runs import decode_run
from icecore.errors import BatchTooLargeError, ConfigurationError, CorruptBatchError
from icecore.process.log import event

if TYPE_CHECKING:
    from icecore.codec.row_group import RowGroupRows

_log = logging.getLogger(__name__)

CorruptPolicy: TypeAlias = Literal["fail", "skip"]


class Decoder:
    """Decodes the batches of one consumer.

    Args:
        policy: What to do with a batch that can't be decoded.

    Raises:
        ConfigurationError: There is no such policy.
    """

    def __init__(self, policy: CorruptPolicy) -> None:
        if policy not in ("fail", "skip"):
            raise ConfigurationError(f"on_corrupt is fail or skip, not {policy!r}")
        self._policy = policy
        self._failed: tuple[Reader, int, CorruptBatchError] | None = None
        self.skipped = 0
        """Batches passed over."""

    def check(self) -> None:
        """Raises the CorruptBatchError of a failure that no seek has dealt with."""
        if self._failed is not None:
            reader, generation, error = self._failed
            if reader.generation == generation:
                raise error
            self._failed = None

    def decode(self, chunk: Chunk) -> BatchColumns | None:
        """The columns of a batch; None when it is passed over.

        Raises:
            CorruptBatchError: It can't be decoded; ``check`` raises it, too, until a seek.
        """
        try:
            return decode(chunk.data, chunk.position, chunk.header)
        except (CorruptBatchError, BatchTooLargeError) as error:
            self._refuse(chunk, error)
            return None

    def decode_run(self, run: Sequence[Chunk]) -> tuple[BatchColumns | None, int]:
        """The columns of neighbours (``Fetcher.run``) as those of one batch, and of how many: one
        that can't be decoded ends a run, and is passed over or raised as the first of the next one.

        Raises:
            CorruptBatchError: As ``decode``, of the first one.
        """
        places = [(chunk.position, chunk.header) for chunk in run]
        try:
            return decode_run(run[0].data, places)
        except (CorruptBatchError, BatchTooLargeError) as error:
            self._refuse(run[0], error)
            return None, 1

    def decode_rows(
        self, chunk: Chunk, names: tuple[str, ...] | None = None
    ) -> "RowGroupRows | None":
        """The rows of a row group; None when it is passed over.

        Args:
            chunk: It is one (``Chunk.is_row_group``).
            names: Only these columns; None = all of a record.

        Raises:
            CorruptBatchError: As ``decode``.
        """
        from icecore.codec import row_group  # only asked for where its library is installed

        try:
            return row_group.decode(chunk.data, chunk.position, chunk.header, names)
        except (CorruptBatchError, BatchTooLargeError) as error:
            self._refuse(chunk, error)
            return None

    def _refuse(self, chunk: Chunk, why: Exception) -> None:
        reader, next_offset = chunk.reader, chunk.header.end_offset
        if self._policy == "skip":
            self.skipped += 1
            reader.pass_by(next_offset)
            event(
                _log,
                logging.WARNING,
                "batch_skipped",
                topic=reader.topic,
                partition=reader.partition,
                offset=chunk.from_offset,
                next_offset=next_offset,
                error=why,
            )
            return
        where = f"{reader.topic}/{reader.partition}: the batch at offset {chunk.from_offset}"
        error = CorruptBatchError(
            f"{where} can't be decoded: {why}; seek to {next_offset} to go on behind it",
            topic=reader.topic,
            partition=reader.partition,
            offset=chunk.from_offset,
            next_offset=next_offset,
        )
        reader.move_to(chunk.from_offset)  # what was fetched behind it is dropped
        self._failed = (reader, reader.generation, error)
        raise error from why
