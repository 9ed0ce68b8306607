"""Received bytes to frames, without I/O: where the next bytes go, and which frames they complete.

Small frames are read through one shared buffer, which grows for a meta that it can't hold. A body
that does not fit there gets memory of its own before it is read, after ``Admit`` was asked, and the
bytes behind it land in the shared buffer in the same system call. A body that is not admitted is
read over: the connection stays in step. The first frame must be a hello, so nobody else is ever
asked for memory.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from icecore.rpc.native.frame import (
    HEAD_BYTES,
    Frame,
    FrameError,
    FrameKind,
    Head,
    read_head,
    read_meta,
)

SHARED_BYTES: Final = 16 << 10

Admit = Callable[[Head, bytes], bool]
"""Whether there is memory for the body that a head announces; it says so to the peer if not."""


class Inbox:
    """The receiving side of one connection.

    Args:
        admit: Asked once for each body that needs memory of its own.
    """

    def __init__(self, admit: Admit) -> None:
        self._admit = admit
        self._shared = memoryview(bytearray(SHARED_BYTES))
        self._have = 0
        self._is_first = True
        self._body: memoryview | None = None
        self._begun: tuple[Head, bytes] | None = None
        self._at = 0
        self._skip_bytes = 0

    @property
    def is_between_frames(self) -> bool:
        """Return whether nothing of a frame has arrived that is not whole yet."""
        return self._body is None and not self._have and not self._skip_bytes

    @property
    def expected_bytes(self) -> int:
        """Size of the large body that is under way; 0 when there is none."""
        return len(self._body) if self._body is not None else self._skip_bytes

    def targets(self) -> list[memoryview]:
        """Return the buffers for the next bytes received; never empty."""
        if self._body is not None:
            return [self._body[self._at :], self._shared]
        return [self._shared[self._have :]]

    def received(self, count: int) -> list[Frame]:
        """``count`` bytes more are in ``targets()``; the frames that are whole now, in order.

        Raises:
            FrameError: The bytes are no frames of ours.
        """
        frames: list[Frame] = []
        if self._body is None:
            self._have += count
        else:
            rest = len(self._body) - self._at
            if count < rest:
                self._at += count
                return frames
            assert self._begun is not None
            head, meta = self._begun
            frames.append(Frame(head.kind, head.call_id, meta, self._body.toreadonly()))
            self._body = self._begun = None
            self._have = count - rest
        if self._have:
            self._parse(frames)
        return frames

    def _parse(self, frames: list[Frame]) -> None:
        """Take all whole frames out of the shared buffer, and begin the one that is left."""
        view, have = self._shared, self._have
        room = 0
        at = min(self._skip_bytes, have)
        self._skip_bytes -= at
        while have - at >= HEAD_BYTES:
            head = read_head(view, at)
            if self._is_first and head.kind != FrameKind.HELLO:
                raise FrameError("the first frame is no hello")
            start = at + HEAD_BYTES + head.meta_bytes
            if start > have:
                room = start - at
                break
            end = start + head.body_bytes
            if end <= have:
                meta = read_meta(view, at, head)
                body = bytes(view[start:end]) if head.body_bytes else b""
                frames.append(Frame(head.kind, head.call_id, meta, body))
                self._is_first = False
                at = end
                continue
            if end - at > SHARED_BYTES:
                self._begin(head, read_meta(view, at, head), view[start:have])
                at = have
            break
        rest = have - at
        if room > len(view):
            self._shared = memoryview(bytearray(room))
            self._shared[:rest] = view[at:have]
        elif rest and at:
            view[:rest] = bytes(view[at:have])
        self._have = rest

    def _begin(self, head: Head, meta: bytes, first: memoryview) -> None:
        """A body that needs memory of its own; its first bytes have arrived."""
        if not self._admit(head, meta):
            self._skip_bytes = head.body_bytes - len(first)
            return
        self._body = np.empty(head.body_bytes, np.uint8).data
        self._body[: len(first)] = first
        self._begun, self._at = (head, meta), len(first)
