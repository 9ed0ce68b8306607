"""Index files: what is written is found again, in two reads; each wrong byte is noticed."""

import google_crc32c
import numpy as np
import pytest

from icecore.model import Epoch, Generation, SegmentId
from icecore_node.storage.index.entries import Entries, joined, wanted_hashes
from icecore_node.storage.index.posting_blocks import DamagedIndexError
from icecore_node.storage.segment_engine.sealed_index import (
    BLOCKS_MAX,
    FIRST_READ_BYTES,
    HEADER_LENGTH,
    Points,
    SealedFacts,
    SealedIndex,
    entries_per_block,
    write_sealed_index,
)

FACTS = SealedFacts(
    cluster_id=b"c" * 16,
    topic_id=b"t" * 16,
    partition=3,
    segment_id=SegmentId(77),
    generation=Generation(1),
    epoch=Epoch(5),
    base_offset=1000,
    end_offset=4000,
    seal_digest=b"d" * 32,
    min_timestamp_ms=-5,
    max_timestamp_ms=99,
)
NUMBERS = np.arange(3, dtype=np.int64)
POINTS = Points(NUMBERS * 1000, NUMBERS * 5000 + 4096, NUMBERS + 7)


class Bytes:
    """A file in memory; counts reads."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.reads: list[int] = []

    def pwritev(self, buffers: list[bytes], position: int) -> None:
        data = b"".join(buffers)
        self.data += bytes(max(position + len(data) - len(self.data), 0))
        self.data[position : position + len(data)] = data

    def pread(self, length: int, position: int) -> bytes:
        self.reads.append(length)
        return bytes(self.data[position : position + length])


def entries_of(count: int) -> Entries:
    """Spread over the whole range of hashes; every tenth hash has ten ordinals."""
    hashes = np.arange(count, dtype=np.uint64) // np.uint64(10) * np.uint64((1 << 63) // count)
    return Entries(hashes, np.arange(count, dtype=np.uint32))


def written(entries: Entries, spare: int = 0) -> Bytes:
    file = Bytes()
    count = len(entries.hashes)
    parts = [
        Entries(entries.hashes[i : i + 700], entries.ordinals[i : i + 700])
        for i in range(0, count, 700)
    ]
    length = write_sealed_index(file, FACTS, parts, count + spare, POINTS, b"producers")  # type: ignore[arg-type]
    assert length == len(file.data)
    return file


@pytest.mark.parametrize("count", [0, 1, 10, 5000, 50_000])
@pytest.mark.parametrize("spare", [0, 2000])
def test_what_is_written_is_read(count: int, spare: int) -> None:
    """Also when fewer entries come than were announced."""
    entries = entries_of(count) if count else Entries(np.empty(0, "<u8"), np.empty(0, "<u4"))
    file = written(entries, spare)
    index = SealedIndex(file.pread)
    assert index.facts == FACTS
    assert index.length_bytes == len(file.data)
    assert index.verify() == count
    whole = joined(list(index.run.walk()))
    assert whole.hashes.tolist() == entries.hashes.tolist()
    assert whole.ordinals.tolist() == entries.ordinals.tolist()
    assert index.producers() == b"producers"
    assert index.points().encode() == POINTS.encode()


def test_two_reads_find_a_key() -> None:
    count = 50_000
    entries = entries_of(count)
    file = written(entries)
    for at in (0, 12_345, count - 1):
        file.reads.clear()
        (found,), _ = SealedIndex(file.pread).run.find(wanted_hashes([int(entries.hashes[at])]))
        assert found.tolist() == list(range(at // 10 * 10, at // 10 * 10 + 10))
        assert len(file.reads) == 2


def test_header_and_directory_are_in_the_first_read() -> None:
    for count in (1, 1 << 20, 10_000_000, 1 << 32):
        blocks = -(-count // entries_per_block(count))
        assert blocks <= BLOCKS_MAX
    assert HEADER_LENGTH + 40 + 12 * BLOCKS_MAX <= FIRST_READ_BYTES


def test_any_wrong_byte_is_noticed() -> None:
    file = written(entries_of(60))
    whole = bytes(file.data)
    for at in range(len(whole)):
        file.data[at] ^= 0x10
        with pytest.raises(DamagedIndexError):
            SealedIndex(file.pread).verify()
        file.data[at] ^= 0x10
    assert SealedIndex(file.pread).verify() == 60


def test_a_file_that_is_cut_is_noticed() -> None:
    whole = bytes(written(entries_of(60)).data)
    for length in range(len(whole)):
        file = Bytes()
        file.data += whole[:length]
        with pytest.raises(DamagedIndexError):
            SealedIndex(file.pread).verify()


def test_other_hashes_and_versions_are_refused() -> None:
    for at, value in ((4, 9), (12, 1), (20, 1), (24, 1), (28, 1)):
        file = written(entries_of(10))
        file.data[at] ^= value
        file.data[8:12] = bytes(4)
        file.data[8:12] = google_crc32c.value(bytes(file.data[:HEADER_LENGTH])).to_bytes(
            4, "little"
        )
        with pytest.raises(DamagedIndexError, match=r"version|another kind"):
            SealedIndex(file.pread)


def test_golden_bytes() -> None:
    assert bytes(written(entries_of(10)).data[:HEADER_LENGTH]).hex() == (
        "6963656901000001d4069fe978786836340000002a0000002b0000002c000000"
        "0004000063636363636363636363636363636363747474747474747474747474"
        "7474747403000000010000004d000000000000000500000000000000e8030000"
        "00000000a00f000000000000fbffffffffffffff630000000000000064646464"
        "6464646464646464646464646464646464646464646464646464646434010000"
        "0000000034000000000000007c010000000000005000000000000000cc010000"
        "0000000011000000000000000000000000000000000000000000000000000000"
        "0000000000000000000000000000000000000000000000000000000000000000"
    )
