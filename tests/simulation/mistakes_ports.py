"""Seeded mistakes around single calls: one that fails, one that is left out, one that is late."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from icecore.client.consume.reader import Reader
from icecore.errors import StorageError
from tests.simulation.disk import SimFile, SimFileSystem
from tests.simulation.mistakes import Mistake, patch


def folder_not_synced() -> Mistake:
    """R34: a new folder is not durable in its parent, whatever is in it."""
    make_dirs = SimFileSystem.make_dirs
    sync_dir = SimFileSystem.sync_dir

    def wrong(self: SimFileSystem, *names: str) -> None:
        with patch(SimFileSystem, "sync_dir", lambda self, name: self.check()):
            make_dirs(self, *names)

    def own_names_only(self: SimFileSystem, name: str) -> None:
        new = set(self.disk.new_folders)
        sync_dir(self, name)
        self.disk.new_folders |= new & self.disk.folders

    @contextmanager
    def both() -> Iterator[None]:
        with (
            patch(SimFileSystem, "make_dirs", wrong),
            patch(SimFileSystem, "sync_dir", own_names_only),
        ):
            yield

    return both()


def write_error_ignored() -> Mistake:
    """Principle "acked means durable": a write that failed counts as done."""
    pwritev = SimFile.pwritev

    def wrong(self: SimFile, *given: Any) -> None:
        try:
            pwritev(self, *given)
        except StorageError as error:
            if "simulated I/O error" not in str(error):
                raise

    return patch(SimFile, "pwritev", wrong)


def seek_keeps_old_records() -> Mistake:
    """I13: after a seek a consumer delivers what it had fetched before."""

    def wrong(self: Reader, offset: int) -> None:
        self.delivered = offset

    return patch(Reader, "move_to", wrong)
