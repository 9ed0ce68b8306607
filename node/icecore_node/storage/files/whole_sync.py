"""One ``syncfs`` instead of many fdatasyncs: where it can be trusted, and how.

Three things were read in the kernel's source:

- *Errors of the file system itself.* ``syncfs`` reports write-back errors of data since 5.8
  (735e4ae5ba28), but ``sync_filesystem`` in fs/sync.c dropped what ``->sync_fs`` returned, so that
  a journal commit or a cache flush that failed looked like success, until 5679897eb104 ("vfs: make
  sync_filesystem return errors from ->sync_fs") in 5.17. Some older stable kernels have that as
  well; their number does not tell, so 5.17 it is.
- *Who hears of an error.* ``SYSCALL_DEFINE1(syncfs)`` compares the error counter of the file system
  with the one sampled in the *open file description* (``f_sb_err``) and advances that: of two
  threads that share a descriptor one takes the error away from the other. So each thread has its
  own, all of them opened before anything is written.
- *The drive's own cache.* ``ext4_sync_fs`` ends with ``blkdev_issue_flush`` unless the journal
  commit sends a barrier. ``xfs_fs_sync_fs`` only forces the log, which is a no-op when data alone
  was overwritten; ``xfs_file_fsync`` flushes in just that case ("the log force about was a no-op").
  So everywhere but on ext4 one ``fdatasync`` of a file of ours follows, which flushes the device.
"""

import ctypes
import errno
import os
import platform
import threading
from pathlib import Path
from typing import Literal, Self, TypeAlias

from icecore.errors import ConfigurationError

SyncFs: TypeAlias = Literal["auto", "always", "never"]
"""When one ``syncfs`` stands for many fdatasyncs; ``auto`` = where nobody else uses the mount."""

KERNEL_MIN = (5, 17)
_FLUSHING_KINDS = frozenset({"ext4"})
_KINDS = _FLUSHING_KINDS | {"xfs"}
_libc = ctypes.CDLL(None, use_errno=True)


class WholeSync:
    """``syncfs`` of one folder's file system, for several threads."""

    def __init__(self, root: Path, *, is_flushing: bool, threads: int) -> None:
        """
        Args:
            root: On the file system.
            is_flushing: Whether ``syncfs`` also flushes the drive's cache.
            threads: How many will call ``sync``; one more opens its own when it comes.

        Raises OSError.
        """
        self._root = root
        self._by_thread: dict[int, int] = {}
        self._spare: list[int] = []
        self._failed: OSError | None = None
        self._witness = -1
        try:
            if not is_flushing:
                self._witness = os.open(root, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
            for _ in range(threads):
                self._spare.append(self._open())
        except OSError:
            self.close()
            raise

    @classmethod
    def of(cls, root: Path, wish: SyncFs, threads: int) -> Self | None:
        """One that can be trusted with ``root``; None = sync each file by itself.

        Raises:
            ConfigurationError: ``always``, and it can't be trusted here.
            OSError: No descriptors, say.
        """
        kind, is_own_mount = _mount(root)
        if wish == "always":
            if not _tells_errors():
                raise ConfigurationError(
                    "syncfs=always needs Linux {}.{} or newer, this is {}: before, syncfs does not"
                    " report all that could not be written".format(*KERNEL_MIN, platform.release())
                )
        elif wish == "never" or not (_tells_errors() and is_own_mount and kind in _KINDS):
            return None
        return cls(root, is_flushing=kind in _FLUSHING_KINDS, threads=threads)

    def _open(self) -> int:
        return os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def own(self) -> int:
        """The descriptor of the calling thread. Raises OSError when there is none for it."""
        thread = threading.get_ident()
        fd = self._by_thread.get(thread)
        if fd is None:
            fd = self._by_thread[thread] = self._spare.pop() if self._spare else self._open()
        return fd

    def sync(self, fd: int) -> None:
        """Make all earlier writes durable. Raises OSError; after one, each call does."""
        try:
            while _libc.syncfs(fd) != 0:
                number = ctypes.get_errno()
                if number != errno.EINTR:
                    raise OSError(number, os.strerror(number))
            if self._witness >= 0:
                os.fdatasync(self._witness)
        except OSError as error:
            self._failed = error
            raise
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """Close all descriptors; idempotent."""
        fds = [*self._by_thread.values(), *self._spare, self._witness]
        self._by_thread, self._spare, self._witness = {}, [], -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)


def _tells_errors() -> bool:
    release = platform.release().split(".")
    try:
        return (int(release[0]), int(release[1].split("-")[0])) >= KERNEL_MIN
    except (IndexError, ValueError):
        return False


def _mount(root: Path) -> tuple[str, bool]:
    """(kind of file system, whether ``root`` is where it is mounted)."""
    folder = root.resolve()
    mounts: dict[str, str] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        fields = line.split(" ")
        # The last mount on a folder hides the ones before.
        mounts[fields[1].replace("\\040", " ")] = fields[2]
    for parent in (folder, *folder.parents):
        if str(parent) in mounts:
            return mounts[str(parent)], parent == folder and os.path.ismount(root)
    return "", False
