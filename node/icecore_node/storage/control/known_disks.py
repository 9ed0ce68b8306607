"""Which further disks a node has had, and where; remembered on its first disk.

A folder that is empty may be a new disk, or a place where nothing is mounted. Only who remembers
what was there can tell, and can say which replicas are gone with a disk that is missing.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from icecore.errors import StorageError
from icecore_node.storage.control.control_database import ControlDatabase

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
