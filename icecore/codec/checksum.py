"""CRC32C (Castagnoli), the checksum of all that is written or sent, from batches to frames.

Each process that a batch passes reads all of it for this once. The library of the extras that move
bulk data takes any buffer as it is and folds it by carry-less multiplication where the processor
can: 256 KiB in 3 us, where one instruction for each eight bytes takes 9 to 28 and a copy as much
again (docs/adr/tried.md). A plain client does without its 13 MB.
"""

from collections.abc import Callable, Iterable
from typing import Final, cast

import google_crc32c
import numpy as np

Bytes = bytes | bytearray | memoryview

_VIEW_BYTES: Final = 1 << 14
"""From here on a copy costs more than an array."""


def crc32c_by_instruction(buffer: Bytes, previous: int = 0) -> int:
    """As ``crc32c``. The C function takes ``bytes`` and arrays."""
    if len(buffer) < _VIEW_BYTES:
        found: int = google_crc32c.extend(previous, bytes(buffer))
        return found
    viewed: int = google_crc32c.extend(previous, np.frombuffer(buffer, np.uint8))
    return viewed


try:
    from awscrt import checksums
except ImportError:
    crc32c: Callable[..., int] = crc32c_by_instruction
else:
    crc32c = cast("Callable[..., int]", checksums.crc32c)
    """``crc32c(buffer, previous=0)``: of any ``Bytes``, continuing ``previous``."""


def crc32c_between(buffer: Bytes, start: int, end: int) -> int:
    """CRC32C of ``buffer[start:end]``, without a copy."""
    return crc32c(memoryview(buffer)[start:end])


def crc32c_of_parts(parts: Iterable[Bytes]) -> int:
    """CRC32C of the concatenation of ``parts``, without concatenating them."""
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    return crc
