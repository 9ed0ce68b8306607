"""Things in the place of a file: a pipe without a writer, a folder, a device, a loop of
links, and a file that is far too large. Who opens or reads such a thing must not hang."""

import os
from pathlib import Path
from typing import Final

KINDS: Final = {
    "pipe": "it is a pipe",
    "folder": "Is a directory",
    "device": "it is a device",
    "loop": "symbolic links",
    "absent": "No such file",
}
"""Each with the words that are said of it."""


def make(path: Path, kind: str) -> Path:
    """Put it at the path, which is free."""
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path.name)
        case "large":
            with path.open("wb") as file:
                file.truncate(1 << 40)
    return path
