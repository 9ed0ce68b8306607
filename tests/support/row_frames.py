"""Row groups in the frame of a batch, as a node passes them on."""

from collections.abc import Sequence

from icecore.codec import batch, row_group
from icecore_node.remote.format.manifest import RowGroup
from icecore_node.remote.read.row_frames import row_frame
from tests.support.tiered import FACTS, Source, tiered


async def frames_of(source: Source, **options: object) -> list[bytes]:
    """All row groups of a segment, each in one piece."""
    async with tiered(source, **options) as it:
        found = []
        for group in it.manifest.row_groups:
            file = await it.segment.file_of(group)
            found.append(b"".join(row_frame(file, group, source.facts).buffers))
    return found


def framed(file: bytes, records: int, offsets: tuple[int, int] = (0, 1 << 40)) -> bytes:
    """Any bytes, said to be so many rows with these offsets, under right CRCs."""
    group = RowGroup(
        start=0,
        end=len(file),
        base_offset=offsets[0],
        end_offset=offsets[1],
        records=records,
        min_timestamp_ms=0,
        max_timestamp_ms=1,
        max_append_timestamp_ms=1,
        sha256=b"",
    )
    return b"".join(row_frame([file], group, FACTS).buffers)


def rows_of(frames: Sequence[bytes]) -> "list[row_group.RowGroupRows]":
    """Decoded, CRCs compared."""
    found = []
    for frame in frames:
        header = batch.parse_header(frame)
        batch.verify_producer_crc(frame, 0, header)
        found.append(row_group.decode(frame, 0, header))
    return found
