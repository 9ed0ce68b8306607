"""Bytes become frames, however they are cut; wrong bytes and refused peers end in errors."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icecore.rpc.native.frame import (
    BULK_META_BYTES_MAX,
    HEAD_BYTES,
    MESSAGE_BYTES_MAX,
    Frame,
    FrameError,
    FrameKind,
    Head,
    pack_head,
    pack_hello,
)
from icecore.rpc.native.inbox import SHARED_BYTES, Inbox

HELLO = Frame(FrameKind.HELLO, 0, pack_hello()[HEAD_BYTES:], b"")
NOISE = random.Random(1).randbytes(4 * SHARED_BYTES)

sizes = st.one_of(
    st.integers(0, 100),
    st.integers(SHARED_BYTES - 60, SHARED_BYTES + 20),
    st.integers(0, 3 * SHARED_BYTES),
)
frames = st.builds(
    lambda kind, call_id, meta, size: Frame(kind, call_id, meta, NOISE[:size]),
    st.sampled_from([FrameKind.CALL, FrameKind.ANSWER, FrameKind.ERROR, FrameKind.DATA]),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=30),
    sizes,
)
bulk_frames = st.builds(
    lambda call_id, meta, size: Frame(FrameKind.BULK, call_id, NOISE[:meta], NOISE[:size]),
    st.integers(0, 2**32 - 1),
    st.one_of(st.integers(0, 100), st.integers(SHARED_BYTES - 40, BULK_META_BYTES_MAX)),
    sizes,
)
cuts = st.lists(st.one_of(st.integers(1, 40), st.integers(1, 2 * SHARED_BYTES)), min_size=1)


def packed(frame: Frame) -> bytes:
    """As it is sent."""
    return pack_head(frame.kind, frame.call_id, frame.meta, len(frame.body)) + frame.body


class Doorman:
    """Admits what it is told to, and remembers who asked."""

    def __init__(self, refused: frozenset[int] = frozenset()) -> None:
        self.refused = refused
        self.asked: list[Head] = []

    def admit(self, head: Head, meta: bytes) -> bool:
        self.asked.append(head)
        return head.call_id not in self.refused


def receive(inbox: Inbox, stream: bytes, cuts: list[int]) -> list[Frame]:
    """Give bytes to an inbox in pieces, as a socket does."""
    least = len(stream) // 2000  # the rest would only take time
    found: list[Frame] = []
    at, turn = 0, 0
    while at < len(stream):
        targets = inbox.targets()
        room = sum(map(len, targets))
        assert room > 0
        count = min(room, max(least, cuts[turn % len(cuts)]), len(stream) - at)
        end = at + count
        for target in targets:
            part = stream[at : min(end, at + len(target))]
            target[: len(part)] = part
            at += len(part)
        found += inbox.received(count)
        turn += 1
    return found


@given(sent=st.lists(frames | bulk_frames, max_size=8), cuts=cuts)
def test_any_cut_gives_the_same_frames(sent: list[Frame], cuts: list[int]) -> None:
    doorman = Doorman()
    inbox = Inbox(doorman.admit)
    found = receive(inbox, b"".join(map(packed, [HELLO, *sent])), cuts)
    assert found == [HELLO, *sent]
    assert inbox.is_between_frames and inbox.expected_bytes == 0
    for each in found:
        assert isinstance(each.body, bytes) or each.body.readonly
    large = [each for each in found if isinstance(each.body, memoryview)]
    assert len(doorman.asked) == len(large)


@given(
    numbered=st.lists(frames | bulk_frames, max_size=8),
    refused=st.sets(st.integers(0, 7)),
    cuts=cuts,
)
def test_bodies_that_are_not_admitted_are_read_over(
    numbered: list[Frame], refused: set[int], cuts: list[int]
) -> None:
    sent = [each._replace(call_id=number) for number, each in enumerate(numbered)]
    doorman = Doorman(frozenset(refused))
    inbox = Inbox(doorman.admit)
    found = receive(inbox, b"".join(map(packed, [HELLO, *sent])), cuts)
    skipped = {head.call_id for head in doorman.asked} & refused
    assert found == [HELLO, *(each for each in sent if each.call_id not in skipped)]
    assert inbox.is_between_frames and inbox.expected_bytes == 0


@given(frame=frames, cuts=cuts, data=st.data())
def test_any_flipped_bit_of_a_head_is_noticed(
    frame: Frame, cuts: list[int], data: st.DataObject
) -> None:
    doorman = Doorman()
    inbox = Inbox(doorman.admit)
    whole = bytearray(packed(frame))
    bit = data.draw(st.integers(0, (HEAD_BYTES + len(frame.meta)) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    assert receive(inbox, packed(HELLO), cuts) == [HELLO]
    pings = pack_head(FrameKind.PING, 0, b"", 0) * (2 * SHARED_BYTES // HEAD_BYTES)
    with pytest.raises(FrameError):
        receive(inbox, bytes(whole) + pings, cuts)
    assert not doorman.asked  # nothing was believed


@given(garbage=st.binary(min_size=HEAD_BYTES, max_size=200), cuts=cuts)
def test_garbage_is_refused_at_once(garbage: bytes, cuts: list[int]) -> None:
    with pytest.raises(FrameError):
        receive(Inbox(Doorman().admit), garbage + bytes(2 * SHARED_BYTES), cuts)


@pytest.mark.parametrize("body_bytes", [MESSAGE_BYTES_MAX + 1, 2**32 - 1])
def test_lengths_above_the_maximum_are_refused_before_anything_is_allocated(
    body_bytes: int,
) -> None:
    doorman = Doorman()
    inbox = Inbox(doorman.admit)
    receive(inbox, packed(HELLO), [100])
    with pytest.raises(FrameError, match="larger than max"):
        receive(inbox, pack_head(FrameKind.CALL, 1, b"", body_bytes), [HEAD_BYTES])
    assert not doorman.asked


def test_nobody_is_asked_before_the_hello() -> None:
    doorman = Doorman()
    with pytest.raises(FrameError, match="no hello"):
        receive(Inbox(doorman.admit), pack_head(FrameKind.CALL, 1, b"", 1 << 20), [HEAD_BYTES])
    assert not doorman.asked


def test_what_was_received_stays_as_it_is() -> None:
    inbox = Inbox(Doorman().admit)
    sent = [
        Frame(FrameKind.DATA, number, b"m", NOISE[number : number + size])
        for number, size in enumerate([10, 1000, SHARED_BYTES, 11, 2 * SHARED_BYTES, 5])
    ]
    found = receive(inbox, b"".join(map(packed, [HELLO, *sent])), [7000])
    for target in inbox.targets():
        target[:] = struct.pack("B", 255) * len(target)
    assert found == [HELLO, *sent]
