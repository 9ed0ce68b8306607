"""Chooses partitions: puts records and columns into the open batches of a topic's partitions.

A key decides the partition by its hash. Records without keys fill one partition after the other, so
that their batches are large.
"""

from typing import Any

from icecore.client.produce.batches import Batch, Piece
from icecore.client.produce.buffer import Buffer
from icecore.client.produce.bulk import Columns
from icecore.client.produce.limits import why_too_large
from icecore.client.produce.topics import Topic, Topics
from icecore.errors import InvalidRequestError

_RUN_BYTES_MIN = 1 << 20
"""Bytes of records without keys that go to one partition before the next one has its turn. Batches
that travel together are appended, synced and replicated together."""


class Partitioner:
    """Fills the batches of one producer.

    Args:
        topics: Choose the next partition for records without keys.
        buffer: Opens and closes batches.
    """

    def __init__(self, topics: Topics, buffer: Buffer) -> None:
        self._topics = topics
        self._buffer = buffer

    def append(
        self, topic: Topic, partition: int | None, row: tuple[Any, ...]
    ) -> tuple[Batch, int]:
        """Add a record to the open batch of its partition. Return the batch and the index there.

        Args:
            topic: Its partitions are known.
            partition: Instead of the one that the key decides.
            row: Value, key, hash of the key, time, tags, headers and size of the record.

        Raises:
            InvalidRequestError: The topic has no such partition.
            RecordTooLargeError: The record exceeds the limit of the topic.
        """
        value, key, key_hash, timestamp_ms, tags, headers, size = row
        queues = topic.queues
        if size > topic.record_bytes_max:
            self.check(topic, row)
        if partition is not None:
            if not 0 <= partition < len(queues):
                raise InvalidRequestError(f"{topic.name} has partitions 0 to {len(queues) - 1}")
            queue = queues[partition]
        elif key is None:
            if queues[topic.sticky].open is None and queues[topic.sticky].is_busy:
                # A new batch would wait for the last one's answer.
                self._topics.choose_sticky(topic)
            queue = queues[topic.sticky]
        else:
            queue = queues[(key_hash >> 32) % len(queues)]
        batch = queue.open
        if batch is None or batch.rows or batch.size_bytes + size > topic.batch_bytes_cap:
            self._buffer.close(queue)
            batch = self._buffer.open(queue)
        # Nothing from here on can fail: a record has all of its columns, or none.
        self._buffer.used_bytes += size
        index = len(batch.values)
        batch.values.append(value)
        batch.times.append(timestamp_ms)
        if key is not None or batch.keys:
            if len(batch.keys) < index:
                batch.keys.extend([None] * (index - len(batch.keys)))
                batch.hashes.extend([0] * (index - len(batch.hashes)))
            batch.keys.append(key)
            batch.hashes.append(key_hash)
        if tags or headers or batch.tags is not None or batch.headers is not None:
            batch.set_extras(tags, headers)
        batch.size_bytes += size
        if batch.size_bytes >= topic.batch_bytes:
            if key is None and partition is None:
                self._topics.choose_sticky(topic)
            self._buffer.close(queue)
        return batch, index

    def check(self, topic: Topic, row: tuple[Any, ...]) -> None:
        """Raises RecordTooLargeError when the topic does not take this record."""
        value, key, _, _, tags, headers, _ = row
        error = why_too_large(topic.limits, value, key, tags, headers)
        if error is not None:
            self._topics.look_again()
            raise error

    def check_columns(self, topic: Topic, columns: Columns) -> None:
        """Raises RecordTooLargeError, which names the row, as ``check``."""
        if (error := columns.why_too_large(topic.limits)) is not None:
            self._topics.look_again()
            raise error

    def append_columns(
        self, topic: Topic, partition: int | None, columns: Columns, pieces: list[Piece]
    ) -> None:
        """Add records to batches of their partitions, in order, and note where in ``pieces``.

        Raises:
            InvalidRequestError: The topic has no such partition.
            RecordTooLargeError: A record exceeds the limit of the topic.
        """
        queues, run_bytes = topic.queues, 0
        self.check_columns(topic, columns)
        if partition is None and queues[topic.sticky].open is None:
            self._topics.choose_sticky(topic)
        if partition is not None and not 0 <= partition < len(queues):
            raise InvalidRequestError(f"{topic.name} has partitions 0 to {len(queues) - 1}")
        parts: list[tuple[int | None, Columns]] = [(partition, columns)]
        if partition is None and columns.hashes is not None:
            parts = list(columns.by_partition(len(queues), topic.sticky))
        for number, part in parts:
            for piece in part.pieces(topic.batch_bytes):
                queue = queues[topic.sticky if number is None else number]
                pieces.append(self._buffer.add(queue, piece, topic.batch_bytes))
                run_bytes += piece.size_bytes
                if number is None and queue.open is None and run_bytes >= _RUN_BYTES_MIN:
                    self._topics.choose_sticky(topic)
                    run_bytes = 0
