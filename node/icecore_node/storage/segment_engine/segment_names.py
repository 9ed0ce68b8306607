"""What the files of a replica are called: built from ids only.

``segments/<topic>/<partition>/<segment>.<generation>.log`` is the data file. A file that must not
be used any more, and may still be wanted by a person or a salvage (R43, R46), is set aside: it
keeps its name and gets a numbered ending.
"""

from icecore_node.ports import FileSystem
from icecore_node.storage.engine import SegmentIdentity
from icecore_node.storage.segment_engine.segment_header import (
    FILE_HEADER_LENGTH,
    decode_file_header,
)

ASIDE = ".quarantined"
"""What the name of a file that was set aside has behind ``.log``, followed by a number."""


def folder_name(identity: SegmentIdentity) -> str:
    """Folder of one partition's segments, relative to the data folder."""
    return f"segments/{identity.topic_id.hex()}/{identity.partition}"


def file_name(identity: SegmentIdentity) -> str:
    """Data file of one replica, relative to the data folder; built from ids only."""
    name = f"{identity.segment_id:020d}.{identity.generation}.log"
    return f"{folder_name(identity)}/{name}"


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
