"""Locations: the engine and the disk that have the bytes of a replica.

The record of a replica has both in one name. On the first disk of a node it is the name of the
engine, as segments name it. On a further disk (``data_dirs``) the disk's id follows:
``segment@1f2e…``. ``SegmentIdentity`` names the engine alone, because disks are a matter of one
node.
"""

FIRST_DISK = ""
"""The name of the disk with the control store."""


def location_of(engine: str, disk: str) -> str:
    """The name of an engine on a disk."""
    return f"{engine}@{disk}" if disk != FIRST_DISK else engine


def engine_of(location: str) -> str:
    """Which engine it is."""
    return location.partition("@")[0]


def disk_of(location: str) -> str:
    """On which disk it works."""
    return location.partition("@")[2]
