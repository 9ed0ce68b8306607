"""Buffers to be sent, in order and in bounded turns, without I/O."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from icecore.rpc.ports import Buffer

TURN_BYTES_MAX: Final = 1 << 20
"""Maximum bytes of one system call. A reader that keeps pace would prolong a larger call and so
hold the loop."""
_BUFFERS_MAX: Final = 512
"""Maximum buffers of one system call; the kernel's limit (IOV_MAX) is 1024."""


def one_turn(buffers: Iterable[Buffer]) -> list[Buffer]:
    """As many of them as go out in one turn, the last one perhaps in part."""
    taken: list[Buffer] = []
    room = TURN_BYTES_MAX
    for each in buffers:
        if len(each) > room:
            taken.append(memoryview(each)[:room])
            break
        taken.append(each)
        room -= len(each)
        if not room or len(taken) == _BUFFERS_MAX:
            break
    return taken


def _owned(buffer: Buffer) -> Buffer:
    is_part = isinstance(buffer, memoryview) and memoryview(buffer.obj).nbytes > 2 * len(buffer)
    return bytes(buffer) if is_part else buffer


class FrameOutbox:
    """Buffers that one connection has not sent yet."""

    def __init__(self) -> None:
        self._buffers: deque[Buffer] = deque()
        self.size_bytes = 0

    def add(self, buffers: Sequence[Buffer], sent_bytes: int, size_bytes: int) -> None:
        """Keep all but the first ``sent_bytes`` of a message of ``size_bytes``.

        ``sent_bytes`` is 0 unless the outbox is empty.
        """
        self._buffers.extend(buffers)
        self.size_bytes += size_bytes
        if sent_bytes:
            self.sent(sent_bytes)

    def next(self) -> list[Buffer]:
        """Return the buffers to send in the next turn."""
        return one_turn(self._buffers)

    def sent(self, count: int) -> None:
        """The first ``count`` bytes are gone."""
        buffers = self._buffers
        self.size_bytes -= count
        while buffers and count >= len(buffers[0]):
            count -= len(buffers.popleft())
        if count:
            buffers[0] = memoryview(buffers[0])[count:]

    def own(self) -> None:
        """Copy what is a small part of other memory, which would live as long as a slow reader."""
        self._buffers = deque(map(_owned, self._buffers))

    def clear(self) -> None:
        """Nothing of it is sent any more."""
        self._buffers.clear()
        self.size_bytes = 0
