"""Buffers that wait to be sent: all of them, in order, in bounded turns."""

from hypothesis import given
from hypothesis import strategies as st

from icecore.rpc.native.outbox import TURN_BYTES_MAX, FrameOutbox, one_turn
from icecore.rpc.ports import Buffer

buffers = st.one_of(
    st.binary(max_size=20),
    st.binary(max_size=20).map(bytearray),
    st.binary(max_size=20).map(memoryview),
)


@given(
    messages=st.lists(st.lists(buffers, max_size=10), min_size=1, max_size=6),
    shares=st.lists(st.floats(0, 1), min_size=1),
    first_share=st.floats(0, 1),
)
def test_everything_is_sent_in_order(
    messages: list[list[Buffer]], shares: list[float], first_share: float
) -> None:
    outbox = FrameOutbox()
    sent = bytearray()

    def send(share: float) -> None:
        turn = b"".join(outbox.next())
        count = max(1, round(len(turn) * share)) if turn else 0
        sent.extend(turn[:count])
        outbox.sent(count)

    for number, message in enumerate(messages):
        whole = b"".join(message)
        gone = 0 if outbox.size_bytes else round(len(whole) * first_share)
        sent.extend(whole[:gone])
        outbox.add(message, gone, len(whole))
        send(shares[number % len(shares)])
    turn = 0
    while outbox.size_bytes:
        send(shares[turn % len(shares)])
        turn += 1
    assert sent == b"".join(b"".join(message) for message in messages)
    assert outbox.next() == []


def test_turns_are_bounded() -> None:
    large = bytes(3 * TURN_BYTES_MAX)
    assert sum(map(len, one_turn([b"head", large, b"next"]))) == TURN_BYTES_MAX
    assert [len(each) for each in one_turn([large[:TURN_BYTES_MAX], b"next"])] == [TURN_BYTES_MAX]
    many = one_turn([b"x"] * 5000)
    assert len(many) == 512
    empty = one_turn([b""] * 5000)
    assert len(empty) == 512


def test_thousands_of_empty_buffers_hold_up_nothing() -> None:
    outbox = FrameOutbox()
    outbox.add([b"", *[b""] * 3000, b"x", *[b""] * 3000], 0, 1)
    turns = 0
    while outbox.size_bytes:
        outbox.sent(sum(map(len, outbox.next())))
        turns += 1
    assert turns < 20


def test_clear() -> None:
    outbox = FrameOutbox()
    outbox.add([b"abc"], 1, 3)
    assert outbox.size_bytes == 2
    outbox.clear()
    assert outbox.size_bytes == 0 and outbox.next() == []


def test_what_waits_holds_no_more_than_itself() -> None:
    outbox = FrameOutbox()
    large = memoryview(bytes(1 << 20))
    buffers: list[Buffer] = [large[:100], b"own", large, bytearray(b"12")]
    outbox.add(buffers, 40, sum(map(len, buffers)))
    size_bytes, before = outbox.size_bytes, b"".join(outbox.next())
    outbox.own()
    assert outbox.size_bytes == size_bytes and b"".join(outbox.next()) == before
    first = outbox.next()[0]
    assert isinstance(first, bytes) and len(first) == 60
