"""Damage to the files of a stopped node: flipped bits, lost ends."""

import os
import random
from pathlib import Path

from icecore.model import Segment

HEADER_BYTES = 4096


def segment_file(data_folder: Path, segment: Segment) -> Path | None:
    """The file of a replica; None when the node has none."""
    folder = data_folder / "segments" / segment.topic_id.hex() / str(segment.partition)
    found = sorted(folder.glob(f"{segment.segment_id:020d}.*.log"))
    return found[-1] if found else None


def data_end(path: Path) -> int:
    """Return the position where the written part ends. Files are allocated ahead, with zeros."""
    return len(path.read_bytes().rstrip(b"\0"))


def flip_bit(path: Path, where: random.Random | int) -> bool:
    """One bit in the batches, at a byte or anywhere; False when there are none."""
    end = data_end(path)
    if end <= HEADER_BYTES:
        return False
    position = where if isinstance(where, int) else where.randrange(HEADER_BYTES, end)
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << position % 8)]))
        file.flush()
        os.fsync(file.fileno())
    return True


def truncate(path: Path, rng: random.Random) -> bool:
    """Cut the file off somewhere in its batches; False when there are none."""
    end = data_end(path)
    if end <= HEADER_BYTES:
        return False
    os.truncate(path, rng.randrange(HEADER_BYTES, end))
    return True
