"""The folder of a job: notes that are written once, and results that move to their place whole.

File systems differ in what they do in one step, so all is made of what each of them can do: a file
is created aside and then named, and a folder is moved where nothing is. ``Files`` is the port;
``icecore.spark.jobs.files`` asks the file systems of Spark.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from icecore.errors import StorageError


class JobFile(NamedTuple):
    """One that a folder, or one below it, has."""

    path: str
    """Below the folder."""
    size_bytes: int
    modified_ms: int


class Files(Protocol):
    """A folder of some file system; names are of what is below it."""

    path: str
    """The folder, with a scheme."""

    def exists(self, name: str) -> bool:
        """Return whether there is such a file or folder."""

    def names(self, name: str) -> list[str]:
        """Return the names of all entries of a folder; none when there is no such folder."""

    def files(self, name: str) -> Iterator[JobFile]:
        """All files below a folder; none when there is no such folder."""

    def idle_ms(self, name: str) -> int:
        """Return for how long nothing was written below a folder; 0 when it is gone."""

    def delete(self, name: str) -> None:
        """A file, or a folder and all that is in it; nothing when it is not there."""

    def delete_empty(self, name: str) -> None:
        """A folder, unless something is in it."""

    def move(self, source: str, target: str) -> bool:
        """Give a file or a folder another name, and make the folder that is to have it; False when
        that can't be.

        Raises:
            StorageError: It failed, or may have.
        """

    def copy(self, source: str, target: str) -> str:
        """Copy a file; why not, or empty."""

    def link(self, source: str, target: str) -> bool | None:
        """Give a file another name, too, where a move would go over what is there; False when the
        name is taken, None when moves never do so, or the disk knows no such links."""

    def read(self, name: str) -> str:
        """The text of a file."""

    def create(self, name: str, text: str) -> None:
        """Write a file, which others may see before it is whole."""

    def new_name(self) -> str:
        """A name that nobody else has."""


class JobFolder:
    """A folder that a job writes to.

    Args:
        files: Where it is.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self.path = files.path

    def under(self, name: str) -> str:
        """The path of something in it."""
        return f"{self.path}/{name}"

    def new_name(self) -> str:
        """A name that nobody else has."""
        return self._files.new_name()

    def exists(self, name: str) -> bool:
        """Return whether it has such a file or folder."""
        return self._files.exists(name)

    def names(self, name: str) -> list[str]:
        """Return the names of all entries of a subfolder; none when there is no such subfolder."""
        return self._files.names(name)

    def files(self, name: str) -> Iterator[JobFile]:
        """All files below a folder of it; none when there is no such folder."""
        return self._files.files(name)

    def idle_ms(self, name: str) -> int:
        """Return for how long nothing was written below a folder; 0 when it is gone."""
        return self._files.idle_ms(name)

    def delete(self, name: str) -> None:
        """A file, or a folder and all that is in it; nothing when it is not there."""
        self._files.delete(name)

    def delete_empty(self, name: str) -> None:
        """A folder, unless something is in it."""
        self._files.delete_empty(name)

    def try_move(self, source: str, target: str) -> None:
        """Move a folder to where nothing is, unless somebody does the same meanwhile: who looks
        what is there finds out."""
        with suppress(StorageError):
            self._files.move(source, target)

    def copy(self, source: str, target: str) -> None:
        """Copy a file, unless it has come to its place meanwhile.

        Raises:
            StorageError: It is neither here nor there.
        """
        why = self._files.copy(source, target)
        if why and not self.exists(target):
            raise StorageError(
                f"{self.under(source)} could not be moved to {self.under(target)}: {why}"
            )

    def read_json(self, name: str) -> dict[str, Any]:
        """Raises StorageError: It is no JSON object."""
        try:
            found = json.loads(self._files.read(name))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise StorageError(f"{self.under(name)} is damaged: it is no JSON object")
        return found

    def write_json(self, name: str, value: object) -> bool:
        """Write it whole or not at all; False when there is one already."""
        if self.exists(name):
            return False
        unfinished = f"{name}.{self.new_name()}.tmp"
        self._files.create(unfinished, json.dumps(value, indent=1))
        is_ours = self._files.link(unfinished, name)
        if is_ours is None:
            is_ours = self._files.move(unfinished, name)
        self.delete(unfinished)
        return is_ours
