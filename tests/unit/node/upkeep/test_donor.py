"""Ranges of a donor: in order, one ahead, and checked there when they were damaged."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.codec import batch
from icecore.errors import CorruptBatchError, StorageError, UnavailableError
from icecore.rpc import framing
from icecore.v1 import replication_pb2 as pb
from icecore_node.upkeep.donor import Donor
from tests.conformance.log_builder import LogBuilder

SEGMENT = SimpleNamespace(segment_id=3, generation=0, base_offset=10)


class FakeNet:
    """A donor's node; one batch in each answer."""

    def __init__(self) -> None:
        self.log = LogBuilder(3, 10)
        for count in (2, 3, 4, 5):  # offsets 10, 12, 15, 19; the end is 24
            self.log.make(count, 50)
        self.asked: list[tuple[int, bool]] = []
        """Start offset, and whether it should check."""
        self.damaged: set[int] = set()
        self.error: Exception | None = None

    async def call(self, address: str, method: str, body: bytes, *, timeout_s: float) -> bytes:
        request = pb.ReadSegmentRequest.FromString(body)
        self.asked.append((request.start_offset, not request.reader_checks))
        await asyncio.sleep(0)
        if self.error is not None and len(self.asked) > 1:
            raise self.error
        header, data = pb.ReadSegmentHeader(producer_snapshot=b"state"), b""
        for each in self.log.batches:
            if batch.parse_header(each).base_offset == request.start_offset < request.end_offset:
                data = each
        if request.start_offset in self.damaged and request.reader_checks:
            data = data[:-1] + bytes([data[-1] ^ 1])
        return b"".join(framing.frame_bulk(header.SerializeToString(), [data]))


def donor(net: FakeNet, end_offset: int = 24) -> Donor:
    return Donor(cast(Any, net), "node", b"cluster", cast(Any, SEGMENT), end_offset)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_next_range_is_asked_for_before_it_is_needed() -> None:
    net = FakeNet()
    copied = donor(net)
    assert (await copied.starting_state()).producer_snapshot == b"state"
    assert net.asked.pop() == (10, False)
    for number, start_offset in enumerate((10, 12, 15, 19)):
        assert bytes(await copied.next(start_offset)) == net.log.batches[number]
        await turns()
        assert len(net.asked) == min(number + 2, 4)  # one ahead, none behind the end
    assert net.asked == [(10, False), (12, False), (15, False), (19, False)]
    copied.close()


async def test_what_was_damaged_is_asked_for_again_and_checked() -> None:
    net = FakeNet()
    net.damaged = {12}
    copied = donor(net)
    await copied.next(10)
    assert bytes(await copied.next(12)) != net.log.batches[1]
    copied.check_next(CorruptBatchError("damaged"))
    assert bytes(await copied.next(12)) == net.log.batches[1]
    assert net.asked[-1] == (12, True)
    assert bytes(await copied.next(15)) == net.log.batches[2]
    assert net.asked[-1] == (15, False)
    copied.check_next(CorruptBatchError("another one, later"))
    copied.close()


async def test_damage_that_its_donor_does_not_see_is_an_error() -> None:
    copied = donor(FakeNet())
    await copied.next(10)
    copied.check_next(CorruptBatchError("once"))
    await copied.next(10)
    with pytest.raises(CorruptBatchError, match="twice"):
        copied.check_next(CorruptBatchError("twice"))
    copied.close()


async def test_a_range_of_another_place_is_not_used() -> None:
    """What came ended elsewhere than its headers said, or only part of it was right."""
    net = FakeNet()
    copied = donor(net)
    await copied.next(10)
    assert bytes(await copied.next(15)) == net.log.batches[2]
    copied.close()


async def test_behind_lengths_that_lead_nowhere_nothing_is_asked_for() -> None:
    net = FakeNet()
    first = net.log.batches[0]
    net.log.batches[0] = first + first[:20]
    copied = donor(net)
    assert bytes(await copied.next(10)) == net.log.batches[0]
    await turns()
    assert net.asked == [(10, False)]
    copied.close()


async def test_a_donor_that_ends_too_early() -> None:
    copied = donor(FakeNet(), end_offset=30)
    await copied.next(19)
    with pytest.raises(StorageError, match="ends before 30"):
        await copied.next(24)
    copied.close()


async def test_an_error_of_what_is_ahead_is_raised_when_its_turn_comes_or_never() -> None:
    net = FakeNet()
    net.error = UnavailableError("gone")
    copied = donor(net)
    await copied.next(10)
    await turns()
    with pytest.raises(UnavailableError):
        await copied.next(12)
    copied.close()
    again = donor(net)
    net.asked.clear()
    await again.next(10)
    await turns()
    again.close()
    await turns()
