"""One donor of a copy: its ranges of batches in order, the next one asked for before it is needed.

While one range is checked, written and synced here, the one behind it is read there and sent. The
donor leaves CRCs of sealed batches to the copier, who checks them anyway. What is damaged is asked
for once more, to be checked by the donor: so it finds its own damage, and another donor is found.
"""

import asyncio
from typing import Final

from icecore.codec import batch
from icecore.errors import CorruptBatchError, StorageError
from icecore.model import Segment
from icecore.rpc import framing
from icecore.rpc.methods import REPLICATION
from icecore.rpc.ports import Net
from icecore.v1 import replication_pb2

RANGE_BYTES_MAX: Final = 4 << 20
"""Of one answer; one more may be on its way."""
ASK_TIMEOUT_S: Final = 10.0


class Donor:
    """Somebody who holds all of a segment. ``close`` it when it is needed no more.

    Args:
        net: The way to it.
        address: Of its node.
        cluster_id: Ours.
        segment: What is copied.
        end_offset: Where the copy ends.
    """

    def __init__(
        self, net: Net, address: str, cluster_id: bytes, segment: Segment, end_offset: int
    ) -> None:
        self._net = net
        self._address = address
        self._cluster_id = cluster_id
        self._segment = segment
        self._end_offset = end_offset
        self._ahead: tuple[int, asyncio.Task[memoryview]] | None = None
        """Where it starts, and the range itself."""
        self._wants_check = self._was_checked = False
        """Of what comes next, by the donor; of what came last."""

    async def starting_state(self) -> replication_pb2.ReadSegmentHeader:
        """What a new replica stores with the base of the segment."""
        base_offset = self._segment.base_offset
        return (await self._ask(base_offset, base_offset, is_checked=False))[0]

    async def next(self, start_offset: int) -> memoryview:
        """The batches of the range that begins at ``start_offset``; whole, and not checked yet.

        Raises:
            StorageError: The donor ends before the end.
            IcecoreError: Whatever it answers.
        """
        ahead, is_checked = self._ahead, self._wants_check
        self._was_checked, self._wants_check = is_checked, False
        if ahead is None or ahead[0] != start_offset or is_checked:
            self.close()
            data = await self._range(start_offset, is_checked=is_checked)
        else:
            data = await ahead[1]
            self._ahead = None
        if not data:
            raise StorageError(f"the donor {self._address} ends before {self._end_offset}")
        self._ask_ahead(data)
        return data

    def check_next(self, damage: CorruptBatchError) -> None:
        """What came was damaged: let the donor check what it sends next.

        Raises:
            CorruptBatchError: It did already.
        """
        if self._was_checked:
            raise damage
        self._wants_check = True

    def close(self) -> None:
        """What is on its way is not waited for any more."""
        if self._ahead is not None:
            task = self._ahead[1]
            task.add_done_callback(_looked_at)
            task.cancel()
            self._ahead = None

    def _ask_ahead(self, data: memoryview) -> None:
        """For what follows on a range, wherever it ends; it is not checked yet, so it may be wrong
        about that, and then the answer is not used."""
        next_offset = _end_of(data)
        if next_offset is not None and next_offset < self._end_offset:
            asking = asyncio.ensure_future(self._range(next_offset, is_checked=False))
            self._ahead = (next_offset, asking)

    async def _range(self, start_offset: int, *, is_checked: bool) -> memoryview:
        return (await self._ask(start_offset, self._end_offset, is_checked=is_checked))[1]

    async def _ask(
        self, start_offset: int, end_offset: int, *, is_checked: bool
    ) -> tuple[replication_pb2.ReadSegmentHeader, memoryview]:
        request = replication_pb2.ReadSegmentRequest(
            cluster_id=self._cluster_id,
            segment_id=self._segment.segment_id,
            generation=self._segment.generation,
            start_offset=start_offset,
            end_offset=end_offset,
            max_bytes=RANGE_BYTES_MAX,
            reader_checks=not is_checked,
        )
        body = await self._net.call(
            self._address,
            REPLICATION["ReadSegment"],
            request.SerializeToString(),
            timeout_s=ASK_TIMEOUT_S,
        )
        header, data = framing.split_bulk(body, replication_pb2.ReadSegmentResponse)
        return framing.parse(replication_pb2.ReadSegmentHeader, header), data


def _end_of(data: memoryview) -> int | None:
    """The offset behind the last batch; None when the lengths in the headers lead nowhere."""
    position, end_offset = 0, None
    while position + batch.HEADER_LENGTH <= len(data):
        length, _, end_offset = batch.peek(data, position)
        position += max(length, batch.HEADER_LENGTH)
    return end_offset if position == len(data) else None


def _looked_at(task: "asyncio.Task[memoryview]") -> None:
    """Nobody asks for the error of a range that was given up."""
    if not task.cancelled():
        task.exception()
