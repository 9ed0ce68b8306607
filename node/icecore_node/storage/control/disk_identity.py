"""Facts about disks that a node keeps on them: cluster, id and incarnation (R45, R58), the
further disks that it has had, how the process before this one ended (R80), and the names of
locations: an engine on a disk."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from icecore.errors import IcecoreError, StorageError, WrongClusterError
from icecore.model import Incarnation
from icecore.process.log import event
from icecore_node.storage.control.control_database import ControlDatabase


class DiskIdentity:
    """The identity that one disk stores of itself."""

    def __init__(self, database: ControlDatabase) -> None:
        self._database = database

    @property
    def cluster_id(self) -> bytes:
        """The cluster this disk belongs to; empty before the first registration."""
        return self._database.get("cluster_id") or b""

    @property
    def disk_id(self) -> bytes:
        """The cookie of this disk; empty until it was given one."""
        return self._database.get("disk_id") or b""

    @property
    def incarnation(self) -> Incarnation:
        """The last incarnation persisted, 0 when none."""
        return Incarnation(self._database.get_number("incarnation"))

    def join_cluster(self, cluster_id: bytes) -> None:
        """Bind the disk to a cluster at the first registration, durably.

        Raises:
            WrongClusterError: It is bound to another one.
        """
        bound = self.cluster_id
        if bound and bound != cluster_id:
            raise WrongClusterError(
                f"this data belongs to cluster {bound.hex()}, not to {cluster_id.hex()}"
            )
        if not bound:
            self._database.put(cluster_id=cluster_id)

    @property
    def disk_counter(self) -> int:
        """The last one persisted, 0 when none."""
        return self._database.get_number("disk_counter")

    def keep_incarnation(self, incarnation: Incarnation, disk_counter: int) -> None:
        """Persist the incarnation and the counter that it begins with; before the first
        heartbeat."""
        self._database.put(incarnation=incarnation, disk_counter=disk_counter)

    @property
    def metadata_revision(self) -> int:
        """The last one persisted, 0 when none."""
        return self._database.get_number("metadata_revision")

    def raise_disk_counter(self, metadata_revision: int) -> int:
        """Persist the next counter; a copy of this disk that was made before has a lower one. The
        revision of the metadata store that the node heard of is persisted with it (R94)."""
        counter = self.disk_counter + 1
        self._database.put(disk_counter=counter, metadata_revision=metadata_revision)
        return counter


# --- further disks of the node --------------------------------------------------------------------

# Which further disks a node has had, and where; remembered on its first disk.
#
# A folder that is empty may be a new disk, or a place where nothing is mounted. Only who
# remembers what was there can tell, and can say which replicas are gone with a disk that is
# missing.


_KEY = "further_disks"


@dataclass(frozen=True, slots=True)
class KnownDisk:
    """A further disk as it was used last."""

    path: str
    is_mount: bool
    """Whether the folder was a mount of its own."""


class KnownDisks:
    """By disk id in hexadecimal."""

    def __init__(self, database: ControlDatabase) -> None:
        self._database = database

    def all(self) -> dict[str, KnownDisk]:
        """All of them. Raises StorageError when the record can't be read."""
        stored = self._database.get(_KEY)
        try:
            return {disk: KnownDisk(**known) for disk, known in json.loads(stored or b"{}").items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise StorageError(f"control store: {_KEY} is damaged: {error}") from error

    def keep(self, disks: Mapping[str, KnownDisk]) -> None:
        """These and no others, durably."""
        if disks != self.all():
            stored = {disk: asdict(known) for disk, known in disks.items()}
            self._database.put(**{_KEY: json.dumps(stored).encode()})


# --- the end of the process before ----------------------------------------------------------------

# How the process before this one ended, and what that says of bytes that were never synced (R80).
#
# Such bytes are all there if the process synced them and said so (a *clean stop*), or if the page
# cache has outlived it: the kernel's boot id is the one that the process had stored. Otherwise
# nobody knows which of them the disk has.


_log = logging.getLogger(__name__)


class LastStop:
    """The facts about the previous process that one data folder has stored."""

    def __init__(self, database: ControlDatabase) -> None:
        self._database = database

    def kept_all(self, boot_id: str) -> bool:
        """Return whether all that the process before wrote is there.

        Args:
            boot_id: Of the machine as it runs now; empty when nobody can tell.
        """
        stored = (self._database.get("boot_id") or b"").decode("ascii", "replace")
        return self._database.get("clean_stop") is not None or stored == boot_id != ""

    def begin(self, boot_id: str) -> None:
        """From now on something may be written that is not synced. Durable before any of it is, and
        after what ``kept_all`` says was acted on: a crash in between must find the same answer."""
        self._database.put(clean_stop=None, boot_id=boot_id.encode())

    def end(self) -> None:
        """Everything is synced and nothing more will be written. A marker that can't be stored
        makes an unclean stop of this one."""
        try:
            self._database.put(clean_stop=1)
        except IcecoreError as error:
            event(_log, logging.WARNING, "clean_stop_not_stored", error=error)


# --- locations of replicas ------------------------------------------------------------------------

# The record of a replica has engine and disk in one name. On the first disk of a node it is the
# name of the engine, as segments name it. On a further disk (``data_dirs``) the disk's id follows:
# ``segment@1f2e…``. ``SegmentIdentity`` names the engine alone: disks are a matter of one node.


FIRST_DISK = ""
"""The name of the disk with the control store."""


def location_of(engine: str, disk: str) -> str:
    """The name of an engine on a disk."""
    return f"{engine}@{disk}" if disk != FIRST_DISK else engine


def engine_of(location: str) -> str:
    """The name of the engine in a location."""
    return location.partition("@")[0]


def disk_of(location: str) -> str:
    """The id of the disk in a location."""
    return location.partition("@")[2]
