"""Names of a replica's files, built from ids only.

``segments/<topic>/<partition>/<segment>.<generation>.log`` is the data file. The index file has
``.idx`` instead of ``.log``, and may be deleted at any time. A data file that must not be used any
more is set aside when a person or a salvage may still want it (R43, R46): it keeps its name and
gets a numbered ending.
"""

from icecore_node.ports import FileSystem
from icecore_node.storage.engine import SegmentIdentity
from icecore_node.storage.segment_engine.segment_header import (
    FILE_HEADER_LENGTH,
    decode_file_header,
)

_LOG = ".log"
_INDEX = ".idx"
_UNFINISHED = ".unfinished"
ASIDE = ".quarantined"
"""Ending after ``.log`` of a file that was set aside; a number follows it."""


def folder_name(identity: SegmentIdentity) -> str:
    """Folder of one partition's segments, relative to the data folder."""
    return f"segments/{identity.topic_id.hex()}/{identity.partition}"


def file_name(identity: SegmentIdentity) -> str:
    """Data file of one replica, relative to the data folder; built from ids only."""
    name = f"{identity.segment_id:020d}.{identity.generation}{_LOG}"
    return f"{folder_name(identity)}/{name}"


def is_derived(name: str) -> bool:
    """Return whether a file holds nothing that is not made of others, or still copied from them."""
    return name.endswith((_INDEX, _UNFINISHED))


def index_file_name(identity: SegmentIdentity) -> str:
    """Index file of one replica, once it is sealed."""
    return file_name(identity).removesuffix(_LOG) + _INDEX


def unfinished_name(identity: SegmentIdentity) -> str:
    """An index file that is being written."""
    return index_file_name(identity) + _UNFINISHED


def unfinished_copy_name(identity: SegmentIdentity) -> str:
    """A data file that is being copied from another engine."""
    return file_name(identity) + _UNFINISHED


def aside_name(file_system: FileSystem, name: str) -> str:
    """A free name to set this file aside under."""
    number = 0
    while file_system.exists(f"{name}{ASIDE}{number}"):
        number += 1
    return f"{name}{ASIDE}{number}"


def set_aside_leftover(file_system: FileSystem, name: str) -> bool:
    """Rename a file without a (usable) record; whether it may have held confirmed data."""
    file = file_system.open(name)
    found = decode_file_header(file.pread(FILE_HEADER_LENGTH, 0))
    file.close()
    file_system.rename(name, aside_name(file_system, name))
    return found is not None and found.base_offset >= 0


def files_of(file_system: FileSystem, name: str) -> list[str]:
    """This file, if it is there, and what was set aside of it before."""
    folder, _, own = name.rpartition("/")
    names = file_system.list_dir(folder)
    return [f"{folder}/{each}" for each in names if each == own or each.startswith(own + ASIDE)]
