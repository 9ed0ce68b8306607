"""The queue of one partition: batches that wait, requests under way, and what came back of them.

Several requests of a partition may be under way where the transport keeps their order. When a batch
of one comes back, no further one is sent until all have ended: only then is it known what has to be
sent again, and from where.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from icecore.client.produce.batches import Batch, ProducerIdentity
from icecore.errors import HeaderHashesError, IcecoreError

BATCHES_KEPT_FIRST: Final = 5
"""A leader that says nothing recognises so many batches of a producer."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A batch that came back."""

    batch: Batch
    error: IcecoreError
    was_first: bool
    """Nothing before its request was under way: what the leader misses is not on its way."""


class UnderWay:
    """Requests of one partition. False when there are none.

    A request is known here by the number of its first batch: no other one has that batch.
    """

    __slots__ = ("_refused", "_requests", "node_id")

    def __init__(self) -> None:
        self._requests: dict[int, bool] = {}
        """Number of the first batch, and whether the request was alone; in the order of sending."""
        self._refused: list[Refused] = []
        self.node_id = 0
        """Node that all of these requests went to."""

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def is_draining(self) -> bool:
        """Something came back: nothing more is sent until all requests have ended."""
        return bool(self._refused)

    @property
    def oldest_number(self) -> int:
        """Number of the oldest batch under way; there must be one."""
        return next(iter(self._requests))

    def begin(self, node_id: int, batches: Sequence[Batch]) -> None:
        """A request with these batches goes out."""
        assert not self._requests or self.node_id == node_id, "order is kept by one node at a time"
        assert not self._refused, "nothing is sent while something has to be sent again"
        self._requests[batches[0].number] = not self._requests
        self.node_id = node_id

    def end(
        self, batches: Sequence[Batch], failed: Sequence[tuple[Batch, IcecoreError]]
    ) -> list[Refused]:
        """The request with these batches has ended, for some of them without success.

        Returns:
            All that came back, in order, once nothing is under way any more.
        """
        was_first = self._requests.pop(batches[0].number)
        self._refused += [Refused(batch, error, was_first) for batch, error in failed]
        if self._requests:
            return []
        refused, self._refused = self._refused, []
        return sorted(refused, key=lambda each: each.batch.number)


class PartitionQueue:
    """Batches of one partition, in the order in which they must be appended."""

    __slots__ = (
        "attempts",
        "batches_kept",
        "error",
        "identity",
        "indexed_headers",
        "is_waiting",
        "may_overlap",
        "next_number",
        "next_sequence",
        "open",
        "partition",
        "ready",
        "topic",
        "topic_id",
        "under_way",
    )

    def __init__(self, topic: str, topic_id: bytes, partition: int) -> None:
        self.topic = topic
        self.topic_id = topic_id
        """Id of the topic that the records are for: a topic made again has another id."""
        self.partition = partition
        self.open: Batch | None = None
        """Takes records; when it is due it is the last one of ``ready`` as well."""
        self.ready: deque[Batch] = deque()
        self.under_way = UnderWay()
        self.is_waiting = False
        """For a leader or an identity, or before a retry."""
        self.may_overlap = False
        """The last request was answered well: another one may go out before its answer."""
        self.batches_kept = BATCHES_KEPT_FIRST
        """How many batches the leader recognises, as far as we know."""
        self.indexed_headers: tuple[str, ...] | None = None
        """Headers that the leader's segment indexes, as its leader said; None = those of the
        topic."""
        self.identity: ProducerIdentity | None = None
        self.next_sequence = self.next_number = 0
        self.attempts = 0
        """Failures since the last success."""
        self.error: IcecoreError | None = None
        """The last failure, for batches that expire unsent."""

    @property
    def is_busy(self) -> bool:
        """Return whether a new batch would wait for an answer, or share the way with others."""
        return self.is_waiting or len(self.under_way) > 0

    def pop(self) -> Batch:
        """Remove the first batch of ``ready``; nothing is added to it any more."""
        batch = self.ready.popleft()
        if batch is self.open:
            self.open = None
        batch.count = batch.count or len(batch.values)
        return batch

    def learn_headers(self, head: Batch, error: HeaderHashesError) -> bool:
        """Heed what the leader says of a refused batch; whether it can be encoded otherwise.

        The topic's settings changed, and a segment keeps to those that it was opened with.
        """
        names = error.indexed_headers
        if sorted(names) == sorted(head.indexed_headers):
            return False  # the same once more would not help
        self.indexed_headers = names
        return True
