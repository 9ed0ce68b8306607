"""Owner of a folder that a node uses beside its data folder, stored in the folder itself.

A small file names the node by the disk id of its data folder, and a further disk by an id of its
own. So a node refuses a folder of another node or cluster, and recognises a disk wherever it is
mounted.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from icecore.errors import WrongClusterError
from icecore.model import NodeId

OWNER_NAME: Final = "owner.json"
FOR_SEGMENTS: Final = "segments"
FOR_INDEX: Final = "index"


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderOwner:
    """Contents of the owner file; ids in hexadecimal."""

    disk_id: str
    """Id of this folder."""
    node_id: NodeId
    node_disk_id: str
    """Id of the data folder of its node."""
    used_for: str


def read_owner(path: Path) -> FolderOwner | None:
    """None where nobody has written one. Raises OSError, and ValueError for a damaged one."""
    try:
        text = (path / OWNER_NAME).read_text("utf-8")
    except FileNotFoundError:
        return None
    try:
        return FolderOwner(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{OWNER_NAME} is damaged: {error}") from error


def write_owner(path: Path, owner: FolderOwner) -> None:
    """Durably, whole or not at all. Raises OSError."""
    unfinished = path / f"{OWNER_NAME}.unfinished"
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(json.dumps(asdict(owner), indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path / OWNER_NAME)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def check_owner(
    path: Path, found: FolderOwner, node_id: NodeId, node_disk_id: str, used_for: str
) -> None:
    """Raises WrongClusterError when a folder is not that of this node, or not for this."""
    if found.node_disk_id != node_disk_id:
        raise WrongClusterError(
            f"{path} belongs to node {found.node_id} with data folder {found.node_disk_id}, this"
            f" is node {node_id} with data folder {node_disk_id}"
        )
    if found.used_for != used_for:
        raise WrongClusterError(f"{path} is for the {found.used_for} of this node")
