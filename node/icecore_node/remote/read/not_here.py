"""Exception of a search step that needs bytes of object storage that were not read yet.

A file of its own, because searches, which know nothing of object storage, need only this: nodes
without an object store have none of its libraries.
"""

from typing import TYPE_CHECKING, TypeAlias

from icecore_node.remote.store.object_store import ByteRange

if TYPE_CHECKING:
    from icecore_node.remote.format.manifest import RawBatch, RowGroup

Part: TypeAlias = "RowGroup | RawBatch"


class NotHere(Exception):
    """A part, or some bytes of the index object, must be read before the step goes on. Only code
    that runs such steps sees it."""

    def __init__(self, wanted: "Part | ByteRange") -> None:
        super().__init__(str(wanted))
        self.wanted = wanted
