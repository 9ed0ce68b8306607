"""Tell how busy others keep this machine during a measurement. Linux only: it reads /proc.

Ours are this process and all that descend from it. The kernel's own threads are nobody's: most of
what they do is to write what we gave them.
"""

import os
from pathlib import Path
from typing import Final

OTHERS_SHARE_MAX: Final = 0.15
"""Largest share of the machine's processors that other processes may use; above it a figure says
little about ours."""
_KERNEL: Final = 2
"""The pid from which all threads of the kernel descend."""


class Others:
    """CPU time that others have used since this was made, and that the host took away."""

    def __init__(self) -> None:
        self._start = _read()

    def share(self) -> float:
        """Return the share of all processors that other processes used, from 0 to 1."""
        (ticks, stolen, total), now = self._start, _read()
        used = sum(max(0, spent - ticks.get(pid, 0)) for pid, spent in now[0].items())
        # Who waits for a child gets all of its time at once, however long ago it was spent.
        return min(1.0, (used + now[1] - stolen) / max(1, now[2] - total))


def _read() -> tuple[dict[int, int], int, int]:
    """Ticks by process of others, ticks that the host took, ticks of all processors so far."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended
            pid = int(entry.name)
            parents[pid] = int(fields[1])
            ticks[pid] = sum(map(int, fields[11:15]))  # its own, and its children's that ended
    nobodys = {os.getpid(), _KERNEL}
    cpu = list(map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9]))
    theirs = {pid: spent for pid, spent in ticks.items() if not nobodys & _line(pid, parents)}
    return theirs, cpu[7], sum(cpu)


def _line(pid: int, parents: dict[int, int]) -> set[int]:
    """A process and its ancestors."""
    found = set()
    while pid and pid not in found:
        found.add(pid)
        pid = parents.get(pid, 0)
    return found
