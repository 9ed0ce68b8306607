"""Memory that the host has given to this machine, ready for what is measured.

A virtual machine may give what is free back to its host within seconds (free page reporting, a
balloon). The next touch of such a page waits for the host: writes into the page cache run at 0.3
instead of 4.5 GB/s where this was found. A file that is written over and over again, as by the
limit, pays that once; whoever writes new files pays it all the time, and pays more the more memory
others hold. Machines that keep their memory know nothing of it.

To touch memory before is in vain, for it is free again then. So a child takes memory, touches it,
holds it, and lets go of it as others take: the kernel hands out first what came back last.

    python -m benchmarks.harness.warm_memory BYTES  # a line when it is ready; ends with stdin
"""

import contextlib
import mmap
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MIB: Final = 1 << 20
GIB: Final = 1 << 30
HELD_BYTES: Final = 12 * GIB
AHEAD_BYTES: Final = 512 * MIB
"""Free and warm; what is little waits some seconds until the host gets it."""
PIECE_BYTES: Final = 16 * MIB
_LOOK_S: Final = 0.02
"""At 2 GB/s a twelfth of what is ready is taken between two looks."""


@contextlib.contextmanager
def warm_memory(length_bytes: int = HELD_BYTES) -> Iterator[None]:
    """Within it new memory is memory that this machine has: so much, or half of what there is.

    Raises:
        RuntimeError: It could not be had.
    """
    length_bytes = min(length_bytes, memory_bytes("MemAvailable") // 2)
    command = [sys.executable, "-m", __name__, str(length_bytes)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for who measures, which ends this
    ) as child:
        assert child.stdout is not None
        if not child.stdout.readline():
            raise RuntimeError(f"{length_bytes >> 20} MiB of memory could not be touched")
        yield  # its standard input is closed behind this, and it ends


def memory_bytes(name: str) -> int:
    """A line of ``/proc/meminfo``."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) << 10
    raise RuntimeError(f"/proc/meminfo has no {name}")


def released_bytes(free_bytes: int, wanted_free_bytes: int, held_bytes: int) -> int:
    """Return how much to let go of so that so much is free: whole pieces, at most what is held."""
    pieces = -(-max(0, wanted_free_bytes - free_bytes) // PIECE_BYTES)
    return min(pieces * PIECE_BYTES, held_bytes)


def hold(length_bytes: int) -> None:
    """Take so much, say so, and let go of it as others take, until standard input ends."""
    length_bytes -= length_bytes % PIECE_BYTES
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, max(length_bytes, PIECE_BYTES), flags) as held:
        held.madvise(mmap.MADV_HUGEPAGE)
        for start in range(0, length_bytes, mmap.PAGESIZE):
            held[start] = 1
        wanted_free_bytes = memory_bytes("MemFree") + AHEAD_BYTES
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], _LOOK_S)[0]:
            free_bytes = memory_bytes("MemFree")
            length = released_bytes(free_bytes, wanted_free_bytes, length_bytes)
            if length:
                length_bytes -= length
                held.madvise(mmap.MADV_DONTNEED, length_bytes, length)


if __name__ == "__main__":
    hold(int(sys.argv[1]))
