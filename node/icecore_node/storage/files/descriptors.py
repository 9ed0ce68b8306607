"""How a node shares out its file descriptors: index, segment files, reserve, connections (R54)."""

from dataclasses import dataclass
from typing import Self

_INDEX_FILES_MAX = 256
_SEGMENT_FILES_MAX = 65_536
_LEAST = 16
_OTHERS = 64
"""Control store, locks, event loop, gRPC's own, folders that are synced."""


@dataclass(frozen=True, slots=True)
class DescriptorBudget:
    """Shares of one limit. Connections get what is left: at least as much as segment files."""

    index_files_max: int
    segment_files_max: int

    @classmethod
    def of(cls, limit: int, reserve: int) -> Self:
        """
        Args:
            limit: Of the process.
            reserve: What new replicas must leave free.
        """
        index = max(_LEAST, min(_INDEX_FILES_MAX, limit // 8))
        segments = (limit - reserve - index - _OTHERS) // 2
        return cls(index, max(_LEAST, min(_SEGMENT_FILES_MAX, segments)))
