"""The answer of a search step that needs bytes of object storage that were not read yet.

A file of its own, because searches, which know nothing of object storage, need only this: nodes
without an object store have none of its libraries. It is a value and no exception, since an
exception would keep every frame that it has left, and all that those hold, until the collector
comes.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from icecore_node.remote.store.object_store import ByteRange

if TYPE_CHECKING:
    from icecore_node.remote.format.manifest import RawBatch, RowGroup

Part: TypeAlias = "RowGroup | RawBatch"


@dataclass(frozen=True, slots=True)
class Unread:
    """A part, or some bytes of the index object, to read before the step is made again."""

    wanted: "Part | ByteRange"
