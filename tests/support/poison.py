"""Batches that no reader can decode under checksums that are right, as a strange producer might
send them: for tests of the codec, of nodes and of consumers.
"""

from collections.abc import Callable

import lz4.frame
import numpy as np
import zstandard

from icecore.codec import batch, record
from icecore.codec.batch import Codec

VALUES = [b"v" * 100] * 3


def good(codec: Codec, **columns: object) -> bytes:
    """Three records without keys."""
    return record.encode_columns(values=VALUES, timestamps_ms=[1] * 3, codec=codec, **columns)  # type: ignore[arg-type]


def payload_of(raw: bytes) -> bytes:
    """The payload as stored."""
    header = batch.parse_header(raw)
    start = batch.HEADER_LENGTH + header.index_length
    return raw[start : start + header.payload_length]


def with_payload(raw: bytes, payload: bytes, uncompressed_length: int | None = None) -> bytes:
    """The batch with another stored payload."""
    header = batch.parse_header(raw)
    end = batch.HEADER_LENGTH + header.index_length
    length = header.uncompressed_length if uncompressed_length is None else uncompressed_length
    fields = (
        *(header.producer_flags, header.codec, header.record_count, header.index_length, length),
        *(header.min_timestamp_ms, header.max_timestamp_ms, 0, 0, 0, 0, len(payload)),
    )
    body = [raw[batch.HEADER_LENGTH : end], payload, bytes(-len(payload) & 7)]
    return batch.assemble(fields, body)


def compress(payload: bytes, codec: Codec) -> bytes:
    """One frame."""
    if codec is Codec.LZ4:
        return bytes(lz4.frame.compress(payload))
    return zstandard.ZstdCompressor().compress(payload)


def garbage(codec: Codec) -> bytes:
    """No frame at all."""
    raw = good(codec)
    return with_payload(raw, b"\x55" * len(payload_of(raw)))


def garbage_in_frame(codec: Codec) -> bytes:
    """A frame whose header is right and whose blocks are not."""
    raw = good(codec)
    frame = payload_of(raw)
    start = 15 if codec is Codec.LZ4 else 9
    return with_payload(raw, frame[:start] + b"\xff" * (len(frame) - start))


def other_length(codec: Codec) -> bytes:
    """A good frame of another length than the header of the batch says."""
    raw = good(codec)
    length = batch.parse_header(raw).uncompressed_length
    return with_payload(raw, compress(bytes(length + 8), codec))


def longer_than_declared(codec: Codec) -> bytes:
    """Inflates to a megabyte, declares 64 bytes."""
    return with_payload(good(codec), compress(bytes(1 << 20), codec), 64)


def trailing_bytes(codec: Codec) -> bytes:
    """Something behind the frame."""
    raw = good(codec)
    return with_payload(raw, payload_of(raw) + b"more")


def cut_frame(codec: Codec) -> bytes:
    """The frame without its end."""
    raw = good(codec)
    return with_payload(raw, payload_of(raw)[:-5])


def empty_payload(codec: Codec) -> bytes:
    """Nothing, and says so."""
    return with_payload(good(codec), b"", 0)


def wrong_columns(codec: Codec) -> bytes:
    """A good frame in which the offsets of values go down."""
    raw = good(Codec.NONE)
    columns = bytearray(payload_of(raw))
    columns[8:24] = np.array([0, 200, 100, 300], "<i4").tobytes()
    return with_payload(good(codec), compress(bytes(columns), codec))


def other_keys(codec: Codec) -> bytes:
    """The payload calls other keys null than the index section does."""
    raw = good(Codec.NONE, keys=[b"a", None, b"c"])
    columns = bytearray(payload_of(raw))
    columns[0] = 0b110
    return with_payload(good(codec, keys=[b"a", None, b"c"]), compress(bytes(columns), codec))


def huge_window(codec: Codec) -> bytes:
    """A Zstandard frame that asks its reader for 128 MiB; LZ4 has no such thing."""
    if codec is Codec.LZ4:
        return garbage(codec)
    raw = good(codec)
    packer = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=27)
    ).compressobj()
    frame = packer.compress(payload_of(good(Codec.NONE))) + packer.flush()
    assert zstandard.get_frame_parameters(frame).window_size == 1 << 27
    return with_payload(raw, frame)


POISONS: tuple[Callable[[Codec], bytes], ...] = (
    garbage,
    garbage_in_frame,
    other_length,
    longer_than_declared,
    trailing_bytes,
    cut_frame,
    empty_payload,
    wrong_columns,
    other_keys,
    huge_window,
)


def no_content_size() -> bytes:
    """No poison: a Zstandard frame that does not say how long it is."""
    packer = zstandard.ZstdCompressor().compressobj()
    frame = packer.compress(payload_of(good(Codec.NONE))) + packer.flush()
    return with_payload(good(Codec.ZSTD), frame)
