"""The full digest of a whole log: proved batch by batch first, then hashed as it is on disk.

What the digest covers, and its format, is ``icecore_replication/digest.py``.
"""

from icecore.errors import StorageError
from icecore_node.storage.batches.batch_log import Readable
from icecore_node.storage.batches.batch_scan import BatchScan
from icecore_replication.digest import LEAF_BYTES, FullDigest


def checked_digest(file: Readable, scan: BatchScan) -> bytes:
    """The full digest of the batches that a scan has before it, all of a log.

    ``scan`` reads bodies and stands at the first batch: each is CRC-checked before any is hashed.

    Raises:
        StorageError: A batch is damaged, or the log ends before the scan should.
    """
    position = scan.position
    for _ in scan:
        pass
    check_whole(scan)
    return digest_of(file, position, scan.position)


def check_whole(scan: BatchScan) -> None:
    """Raise StorageError unless the scan, which has ended, came to where it should."""
    if scan.position < scan.end_position:
        segment_id = scan.identity.segment_id
        raise StorageError(
            f"segment {segment_id} is damaged at position {scan.position}: {scan.stop}",
            segment_id=segment_id,
        )


def digest_of(file: Readable, position: int, end_position: int) -> bytes:
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
