"""Disk usage as nodes report it, bounded before it is kept.

Everybody gets these texts with the description of the cluster, so no node's report may make that
too large, or put lines into it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from icecore.v1.common_pb2 import DiskUsage

DISKS_KEPT_MAX = 64
"""Most disks kept per node."""
TEXT_BYTES_MAX = 255
"""Most bytes kept of a path, and of a problem."""


@dataclass
class Usage:
    """The disk usage that a node reported last."""

    free_bytes: int = 0
    used_bytes: int = 0
    reclaim_bytes: int = 0
    """Bytes to be freed before the disk has enough room again."""
    disks: tuple[DiskUsage, ...] = ()
    stream: int = 0
    """Number of the heartbeat stream that said so, since this coordinator started."""
    heartbeat: int = 0
    """Sequence number of the heartbeat."""


def kept_disks(told: Sequence[DiskUsage]) -> tuple[DiskUsage, ...]:
    """Return what is kept of a node's disks."""
    return tuple(
        DiskUsage(
            path=kept_text(each.path, TEXT_BYTES_MAX),
            used_bytes=each.used_bytes,
            free_bytes=each.free_bytes,
            problem=kept_text(each.problem, TEXT_BYTES_MAX),
        )
        for each in told[:DISKS_KEPT_MAX]
    )


def kept_text(told: str, bytes_max: int) -> str:
    """Return the beginning of a text, with control characters escaped."""
    shown = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in told[:bytes_max]
    )
    return shown.encode()[:bytes_max].decode(errors="ignore")
