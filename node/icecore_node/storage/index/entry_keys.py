"""Keys of entries in the database: the family ``entry``.

They begin like those of points (``index/points.py``), then come a kind and a number, big-endian::

    0 recent  u64 first offset
    1 run     u64 end offset
    2 block   u64 number of the run, u32 which of its blocks

All of a log is one range. Directories of runs lie under their ends, so that those that tell of what
is behind the end of a log are one range, too.
"""

import struct
from typing import Final

FAMILY: Final = "entry"
RECENT, RUN, BLOCK = range(3)
"""Kinds."""
PREFIX: Final = struct.Struct(">Q")
KEY: Final = struct.Struct(">QBQ")
BLOCK_KEY: Final = struct.Struct(">QBQI")
_KIND = struct.Struct(">QB")


def all_of(prefix: int, kind: int) -> tuple[bytes, bytes]:
    """The range of all keys of this kind."""
    return _KIND.pack(prefix, kind), _KIND.pack(prefix, kind + 1)


def cut_ranges(prefix: int, end_offset: int) -> list[tuple[bytes, bytes]]:
    """Return the key ranges of entries that may lie behind the end of a log that is cut.

    They would be taken for entries of other records once the log has grown again. Recent entries
    all go, so that none can be overlooked. Blocks stay, because they are useless without a
    directory.
    """
    return [
        all_of(prefix, RECENT),
        (KEY.pack(prefix, RUN, end_offset + 1), all_of(prefix, RUN)[1]),
    ]
