"""One file as a power cut would leave it."""

from tests.simulation.inode import BLOCK_BYTES, Inode

_ZERO_BLOCK = bytes(BLOCK_BYTES)


class DurableFile:
    """The reading half of node.ports.File, over what of an inode is on disk."""

    def __init__(self, inode: Inode) -> None:
        self._inode = inode

    def size(self) -> int:
        """The durable one."""
        return self._inode.durable_size

    def pread(self, length: int, position: int) -> bytes:
        """Durable bytes."""
        end = min(position + length, self._inode.durable_size)
        blocks = self._inode.durable_blocks
        first = position // BLOCK_BYTES
        wanted = range(first, (end + BLOCK_BYTES - 1) // BLOCK_BYTES)
        data = b"".join(blocks.get(number, _ZERO_BLOCK) for number in wanted)
        start = position - first * BLOCK_BYTES
        return data[start : start + max(0, end - position)]
