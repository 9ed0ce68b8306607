"""Who keeps the bytes of a replica: an engine, and the disk that it keeps them on.

The record of a replica has both in one name. On the first disk of a node it is that of the engine,
as segments name it; on a further one (``data_dirs``) the id of the disk follows: ``segment@1f2e…``.
What is fixed about a segment (``SegmentIdentity``) names the engine alone, for disks are a matter
of one node.
"""

FIRST_DISK = ""
"""The name of the disk with the control store."""


def keeper_of(engine: str, disk: str) -> str:
    """The name of an engine on a disk."""
    return f"{engine}@{disk}" if disk != FIRST_DISK else engine


def engine_of(keeper: str) -> str:
    """Which engine it is."""
    return keeper.partition("@")[0]


def disk_of(keeper: str) -> str:
    """On which disk it works."""
    return keeper.partition("@")[2]
