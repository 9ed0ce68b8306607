"""Payloads in Zstandard: one frame each, bounded before anything of it is made.

The library is that of Python 3.14, for older ones the same from a package of its own. It is a tenth
of the size of the other bindings, which counts in an environment that has no more than a client.
"""

import sys
import threading
from typing import Final

from icecore.topic_settings import UNCOMPRESSED_BYTES_CAP

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Error = zstd.ZstdError
_STEP_BYTES: Final = 1 << 18
_HEADER_BYTES: Final = 6
"""Magic number, descriptor and window."""
_SINGLE_SEGMENT: Final = 1 << 5


class _Compressor(threading.local):
    """Costly to make, and of one thread, since it lets go of the GIL."""

    def __init__(self) -> None:
        self.used = zstd.ZstdCompressor()


_compressor = _Compressor()


def compress(payload: bytes) -> bytes:
    """One frame that says how long its content is."""
    return _compressor.used.compress(payload, zstd.ZstdCompressor.FLUSH_FRAME)


def decompress(stored: memoryview, length: int) -> bytes | bytearray:
    """The content of one frame; empty when it is not ``length`` bytes, or when more comes behind.

    One that says another length is not even started. No more than ``length`` bytes and a step are
    made of it.

    Raises:
        Error: It is no frame, or it wants a window larger than any batch.
    """
    said = zstd.get_frame_info(stored).decompressed_size
    if not length or said not in (length, None):
        return b""
    if (window := _window_bytes(stored)) > UNCOMPRESSED_BYTES_CAP:
        raise Error(f"its window of {window} bytes is too large")
    frame = zstd.ZstdDecompressor()
    piece = frame.decompress(stored, min(length + 1, _STEP_BYTES))
    if frame.eof and len(piece) == length:
        return b"" if frame.unused_data else piece
    found, at = bytearray(length), 0
    while at + len(piece) <= length:
        found[at : at + len(piece)] = piece
        at += len(piece)
        if frame.eof or not piece:
            break
        piece = frame.decompress(b"", min(length - at + 1, _STEP_BYTES))
    else:
        return b""  # it is longer
    return found if frame.eof and at == length and not frame.unused_data else b""


def _window_bytes(stored: memoryview) -> int:
    """Return the window size that a reader must keep; 0 = only the content itself (RFC 8878)."""
    if len(stored) < _HEADER_BYTES or stored[4] & _SINGLE_SEGMENT:
        return 0
    base = 1 << (10 + (stored[5] >> 3))
    return base + (base >> 3) * (stored[5] & 7)
