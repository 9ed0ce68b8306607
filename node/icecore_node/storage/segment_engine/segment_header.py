"""The 4 KiB header of a segment file: whose file it is, in two slots of one sector each.

``create`` writes the first slot (base offset unknown), ``confirm`` the second: a slot is never
overwritten by another content, so a crash cannot tear what was durable. Batches follow from
position 4096 (``batch_scan.py``). A slot is, little endian: magic, version, header length,
cluster id, topic id, partition, generation, segment id, base offset (-1 = unknown), epoch, zeros,
and in its last four bytes the CRC32C of all that.
"""

import struct
from typing import Final

from icecore.codec.checksum import crc32c, crc32c_between
from icecore_node.storage.engine import SegmentIdentity

FILE_HEADER_LENGTH: Final = 4096

_FILE_MAGIC = b"iceseg\r\n"
_FILE_VERSION = 1
_SLOT_LENGTH = 512
_SLOT = struct.Struct("<8sII16s16sIIQqI")
_CRC = struct.Struct("<I")
_SLOT_COUNT = 2


def _encode_slot(identity: SegmentIdentity, base_offset: int) -> bytes:
    fields = _SLOT.pack(
        _FILE_MAGIC,
        _FILE_VERSION,
        FILE_HEADER_LENGTH,
        identity.cluster_id,
        identity.topic_id,
        identity.partition,
        identity.generation,
        identity.segment_id,
        base_offset,
        identity.epoch,
    )
    raw = fields.ljust(_SLOT_LENGTH - _CRC.size, b"\0")
    return raw + _CRC.pack(crc32c(raw))


def encode_file_header(identity: SegmentIdentity, *, is_confirmed: bool = False) -> bytes:
    """All 4 KiB as ``create`` writes them: first slot without a base; second one with it, or
    empty."""
    second = _encode_slot(identity, identity.base_offset) if is_confirmed else b""
    return (_encode_slot(identity, -1) + second).ljust(FILE_HEADER_LENGTH, b"\0")


def confirm_slot(identity: SegmentIdentity) -> tuple[bytes, int]:
    """Bytes and position of the second slot, which fixes the base offset."""
    return _encode_slot(identity, identity.base_offset), _SLOT_LENGTH


def decode_file_header(data: bytes) -> SegmentIdentity | None:
    """Return the identity in a file header; its base offset is -1 unless it was confirmed.

    None when the header is damaged.
    """
    found: SegmentIdentity | None = None
    for number in range(_SLOT_COUNT):
        slot = data[number * _SLOT_LENGTH : (number + 1) * _SLOT_LENGTH]
        if len(slot) < _SLOT_LENGTH:
            break
        (crc,) = _CRC.unpack_from(slot, _SLOT_LENGTH - _CRC.size)
        if crc32c_between(slot, 0, _SLOT_LENGTH - _CRC.size) != crc:
            continue
        fields = _SLOT.unpack_from(slot)
        if fields[:3] == (_FILE_MAGIC, _FILE_VERSION, FILE_HEADER_LENGTH):
            _, _, _, cluster_id, topic_id, partition, generation, segment_id, base, epoch = fields
            found = SegmentIdentity(
                cluster_id=cluster_id,
                topic_id=topic_id,
                partition=partition,
                segment_id=segment_id,
                generation=generation,
                epoch=epoch,
                base_offset=base,
            )
    return found
