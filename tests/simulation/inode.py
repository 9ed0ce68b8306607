"""The bytes of one simulated file: as the page cache shows them, and as they are on disk.

A power cut decides for each unsynced 512-byte sector if it is kept, dropped or garbled, and for
an unsynced size whether it is the old or the new one.
"""

import random
from bisect import bisect_left

from icecore_node.ports import Buffer

SECTOR_BYTES = 512
BLOCK_BYTES = 4096
_ZERO_BLOCK = bytes(BLOCK_BYTES)


class Inode:
    """The bytes of one file, sparse: as the page cache shows them and as they are durable."""

    def __init__(self) -> None:
        self.blocks: dict[int, bytearray] = {}
        self.size = 0
        self.allocated: set[int] = set()
        self.durable_blocks: dict[int, bytes] = {}
        self.durable_size = 0
        self.dirty: set[int] = set()
        """Numbers of the sectors written since the last sync."""
        self.lost: set[int] = set()
        """Those that a failed sync left as if they were clean."""

    def write(self, data: Buffer, position: int) -> None:
        view = memoryview(data).cast("B")
        end = position + len(view)
        done = 0
        while done < len(view):
            number, start = divmod(position + done, BLOCK_BYTES)
            length = min(BLOCK_BYTES - start, len(view) - done)
            block = self.blocks.get(number)
            if block is None:
                block = self.blocks[number] = bytearray(BLOCK_BYTES)
            block[start : start + length] = view[done : done + length]
            done += length
        self.size = max(self.size, end)
        self.dirty.update(range(position // SECTOR_BYTES, (end + SECTOR_BYTES - 1) // SECTOR_BYTES))

    def read(self, length: int, position: int) -> bytes:
        length = max(0, min(length, self.size - position))
        parts: list[Buffer] = []
        done = 0
        while done < length:
            number, start = divmod(position + done, BLOCK_BYTES)
            count = min(BLOCK_BYTES - start, length - done)
            parts.append(self.blocks.get(number, _ZERO_BLOCK)[start : start + count])
            done += count
        return b"".join(parts)

    def next_data(self, position: int) -> int:
        first = position // BLOCK_BYTES
        number = min((each for each in self.blocks if each >= first), default=None)
        return self.size if number is None else min(self.size, max(position, number * BLOCK_BYTES))

    def truncate(self, length: int) -> None:
        if length < self.size:
            first = length // BLOCK_BYTES
            for number in [number for number in self.blocks if number > first]:
                del self.blocks[number]
            block = self.blocks.get(first)
            if block is not None:
                start = length - first * BLOCK_BYTES
                block[start:] = bytes(BLOCK_BYTES - start)
            end = max(self.size, self.durable_size)
            self.dirty.update(
                range(length // SECTOR_BYTES, (end + SECTOR_BYTES - 1) // SECTOR_BYTES)
            )
            self.allocated = {number for number in self.allocated if number <= first}
            self.lost = {sector for sector in self.lost if sector * SECTOR_BYTES < length}
        self.size = length

    def sync(self) -> None:
        written = {sector * SECTOR_BYTES // BLOCK_BYTES for sector in self.dirty}
        if self.lost:
            self.lost = {
                each for each in self.lost if each * SECTOR_BYTES // BLOCK_BYTES not in written
            }
        for number in written:
            block = self.blocks.get(number)
            if block is None:
                self.durable_blocks.pop(number, None)
            else:
                self.durable_blocks[number] = bytes(block)
        self.durable_size = self.size
        self.dirty.clear()

    def forget_dirty(self) -> None:
        """Do as a failed fsync does: the pages look clean and are not on disk."""
        self.lost |= self.dirty
        self.dirty.clear()

    def drop_lost(self, position: int) -> None:
        """From the block that holds ``position`` on, show what is on disk unless it is dirty."""
        first = position // BLOCK_BYTES * BLOCK_BYTES // SECTOR_BYTES
        for sector in sorted(each for each in self.lost if each >= first):
            number, start = divmod(sector * SECTOR_BYTES, BLOCK_BYTES)
            durable = self.durable_blocks.get(number, _ZERO_BLOCK)
            block = self.blocks.setdefault(number, bytearray(BLOCK_BYTES))
            block[start : start + SECTOR_BYTES] = durable[start : start + SECTOR_BYTES]
            self.lost.discard(sector)

    def flip_bit(self, position: int, bit: int) -> None:
        """On disk and in the page cache; what else is not synced stays so."""
        number, start = divmod(position, BLOCK_BYTES)
        block = self.blocks.get(number)
        if block is not None:
            block[start] ^= 1 << bit
        durable = self.durable_blocks.get(number)
        if durable is not None:
            changed = bytearray(durable)
            changed[start] ^= 1 << bit
            self.durable_blocks[number] = bytes(changed)

    def power_cut(self, rng: random.Random) -> None:
        """Decide sector by sector what was on disk."""
        cached, self.blocks = self.blocks, {}
        size = self._size_after_cut(rng)
        for number, durable in self.durable_blocks.items():
            self.blocks[number] = bytearray(durable)
        for sector in sorted(self.dirty):
            number, start = divmod(sector * SECTOR_BYTES, BLOCK_BYTES)
            fate = rng.random()
            if fate < 0.45:
                continue
            block = self.blocks.setdefault(number, bytearray(BLOCK_BYTES))
            content = bytes(cached.get(number, _ZERO_BLOCK)[start : start + SECTOR_BYTES])
            if fate >= 0.9:
                content = _garbled(block[start : start + SECTOR_BYTES], content, rng)
            block[start : start + SECTOR_BYTES] = content
        # What lies behind the end is never seen again, also when the file grows later.
        blocks = max(self.blocks, default=-1) + 1
        self.size = max(size, self.durable_size, blocks * BLOCK_BYTES)
        self.truncate(size)
        self.dirty = set(range((self.size + SECTOR_BYTES - 1) // SECTOR_BYTES))
        self.lost.clear()
        self.durable_blocks.clear()
        self.allocated = set(self.blocks)
        self.sync()

    def _size_after_cut(self, rng: random.Random) -> int:
        if self.size == self.durable_size:
            return self.size
        fate = rng.random()
        if fate < 0.4:
            return self.durable_size
        if fate < 0.8 or self.size < self.durable_size:
            return self.size
        return rng.randrange(self.durable_size, self.size + 1)

    def is_durable(self, end: int) -> bool:
        """Return whether everything before ``end`` is on disk as it is in the page cache. A sector
        that is being written may hold bytes that were synced before: those are safe."""
        if end > self.durable_size:
            return False
        unsynced = sorted(self.dirty | self.lost if self.lost else self.dirty)
        return all(
            self._is_as_on_disk(sector * SECTOR_BYTES, min(end, (sector + 1) * SECTOR_BYTES))
            for sector in unsynced[: bisect_left(unsynced, -(-end // SECTOR_BYTES))]
        )

    def _is_as_on_disk(self, start: int, end: int) -> bool:
        """Return whether a part of one block is the same in the page cache and on disk."""
        number, first = divmod(start, BLOCK_BYTES)
        part = slice(first, first + end - start)
        cached, durable = self.blocks.get(number), self.durable_blocks.get(number)
        return (cached or _ZERO_BLOCK)[part] == (durable or _ZERO_BLOCK)[part]

    def used_bytes(self) -> int:
        return len(self.allocated | self.blocks.keys()) * BLOCK_BYTES


def _garbled(old: bytearray, new: bytes, rng: random.Random) -> bytes:
    """Noise where a write was under way. Bytes it did not change are safe, synced neighbours in the
    same sector above all (powersafe overwrite, which node/storage/recovery.py assumes)."""
    noise = rng.randbytes(len(new))
    return bytes(
        before if before == after else chance
        for before, after, chance in zip(old, new, noise, strict=True)
    )
