"""Buckets that a node has used, remembered on its first disk.

A bucket without a marker may be a new one, or a place where nothing is mounted and nothing is left.
Only who remembers what was there can tell: objects that were published are nowhere else.
"""

import json
from dataclasses import asdict, dataclass
from typing import Final

from icecore.errors import StorageError
from icecore_node.storage.control.control_database import ControlDatabase

_KEY: Final = "buckets"


@dataclass(frozen=True, slots=True)
class KnownBucket:
    """A bucket as its marker described it."""

    cluster_id: str
    """In hexadecimal."""
    store_id: str
    """Empty for a marker of earlier versions."""


class KnownBuckets:
    """By URL. Blocking."""

    def __init__(self, database: ControlDatabase) -> None:
        self._database = database

    def all(self) -> dict[str, KnownBucket]:
        """All of them. Raises StorageError when the record can't be read."""
        stored = self._database.get(_KEY)
        try:
            found = json.loads(stored or b"{}")
            return {url: KnownBucket(**known) for url, known in found.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise StorageError(f"control store: {_KEY} is damaged: {error}") from error

    def at(self, url: str) -> "BucketRecord":
        """Return the record of the bucket at this URL."""
        return BucketRecord(self, url.rstrip("/"))

    def keep(self, url: str, bucket: KnownBucket) -> None:
        """Remember it, durably, beside the others."""
        stored = {each: asdict(known) for each, known in {**self.all(), url: bucket}.items()}
        self._database.put(**{_KEY: json.dumps(stored).encode()})

    def forget(self) -> None:
        """Forget all of them, durably: a person's word. For ``offline.py`` only."""
        self._database.put(**{_KEY: None})


@dataclass(frozen=True, slots=True)
class BucketRecord:
    """The memory of the bucket at one URL. Blocking. Both methods raise StorageError."""

    buckets: KnownBuckets
    url: str

    def recall(self) -> KnownBucket | None:
        """Return what is remembered; None before the first use."""
        return self.buckets.all().get(self.url)

    def keep(self, bucket: KnownBucket) -> None:
        """Remember it, durably. Raises OutOfSpaceError as well."""
        self.buckets.keep(self.url, bucket)
