"""Checks of a produced batch before it gets offsets: it must be whole, within limits and decodable.

All of a request is checked before any of it is appended, so that its batches keep their order. The
cheap part (framing, CRC, caps) runs on the loop. So does the decoding of requests that inflate to
little. Larger ones go to reader threads, slice by slice, in turn with other requests.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from icecore.codec import batch, record
from icecore.codec.batch import BatchHeader, BatchLimits, Codec
from icecore.errors import BatchTooLargeError, IcecoreError, InvalidRequestError
from icecore.topic_settings import SegmentSettings
from icecore_node.io.heavy_work import HeavyWork

INFLATED_ON_LOOP_BYTES = 128 << 10
"""Compressed requests that inflate to at most this are decoded on the event loop. That takes 0.15
ms, about as long as a change of threads."""
CHECKED_ON_LOOP_BYTES = 8 << 20
"""Requests of at most this size uncompressed are decoded on the event loop. Our producers send at
most half of this at once."""
_SLICE_BYTES = 4 << 20


@dataclass(slots=True)
class CheckedBatch:
    """One batch whose framing is right, and what else is found out about it."""

    data: memoryview
    header: BatchHeader
    limits: BatchLimits
    indexed_headers: tuple[str, ...] = ()
    error: IcecoreError | None = None

    @property
    def is_compressed(self) -> bool:
        """Return whether the batch must be inflated to be decoded."""
        return self.header.codec is not Codec.NONE


def check_frame(data: memoryview, settings: SegmentSettings) -> CheckedBatch:
    """The cheap checks of exactly one batch, by what its segment has pinned.

    Raises:
        IcecoreError: As ``batch.check_produced``, or the batch is not all of ``data``.
    """
    limits = BatchLimits(
        record_bytes_max=settings.record_bytes_max,
        batch_bytes_max=settings.batch_bytes_max,
        uncompressed_bytes_max=settings.uncompressed_bytes_max,
    )
    if len(data) > limits.batch_bytes_max:
        raise BatchTooLargeError(
            f"batch of {len(data)} bytes exceeds batch_bytes_max {limits.batch_bytes_max}"
        )
    header = batch.check_produced(data, 0, limits)
    if header.batch_length != len(data):
        raise InvalidRequestError(
            f"the batch says {header.batch_length} bytes, the request {len(data)}"
        )
    return CheckedBatch(data, header, limits, settings.indexed_headers)


def are_light(batches: list[CheckedBatch]) -> bool:
    """Return whether the batches are small enough to be decoded on the event loop."""
    inflated = sum(each.header.uncompressed_length for each in batches if each.is_compressed)
    total = sum(each.header.uncompressed_length for each in batches)
    return inflated <= INFLATED_ON_LOOP_BYTES and total <= CHECKED_ON_LOOP_BYTES


def check_contents(batches: list[CheckedBatch]) -> None:
    """Decode all of them (R70); ``error`` of each says what is wrong with it."""
    for each in batches:
        try:
            record.check_columns(
                each.data,
                0,
                each.header,
                limits=each.limits,
                indexed_headers=each.indexed_headers,
            )
        except IcecoreError as error:
            each.error = error


async def check_heavy(batches: list[CheckedBatch], heavy_work: HeavyWork) -> None:
    """Run ``check_contents`` on reader threads."""
    for part in _slices(batches):
        largest = max(each.header.uncompressed_length for each in part)
        await heavy_work.run(largest, check_contents, part)


def _slices(batches: list[CheckedBatch]) -> Iterator[list[CheckedBatch]]:
    part: list[CheckedBatch] = []
    length = 0
    for each in batches:
        if part and length + each.header.uncompressed_length > _SLICE_BYTES:
            yield part
            part, length = [], 0
        part.append(each)
        length += each.header.uncompressed_length
    if part:
        yield part
