"""The full digest of a whole log: proved batch by batch first, then hashed as it is on disk.

What the digest covers, and its format, is ``icecore_replication/digest.py``.
"""

from icecore.errors import StorageError
from icecore_node.ports import File
from icecore_node.storage.segment_engine.segment_scan import BatchScan
from icecore_replication.digest import LEAF_BYTES, FullDigest


def checked_digest(file: File, end_position: int, scan: BatchScan) -> bytes:
    """The full digest of the batches in [``scan.position``, ``end_position``), all of a log.

    ``scan`` reads bodies and stands at the first batch: each is CRC-checked before any is hashed.

    Raises:
        StorageError: A batch is damaged, or the log does not end at ``end_position``.
    """
    position = scan.position
    for _ in scan:
        pass
    check_whole(scan, end_position)
    return digest_of(file, position, end_position)


def check_whole(scan: BatchScan, end_position: int) -> None:
    """Raise StorageError unless the scan, which has ended, came to ``end_position``."""
    if scan.position != end_position:
        raise StorageError(f"damaged at position {scan.position}: {scan.stop}")


def digest_of(file: File, position: int, end_position: int) -> bytes:
    """The full digest of the bytes in [``position``, ``end_position``), whatever they are.

    Raises:
        StorageError: The file is shorter, or can't be read.
    """
    full = FullDigest()
    while position < end_position:
        data = file.pread(min(LEAF_BYTES, end_position - position), position)
        if not data:
            raise StorageError(f"the file ends at {position}, not at {end_position}")
        full.update(data)
        position += len(data)
    return full.digest()
