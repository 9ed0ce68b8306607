"""The real disk behind the ``File`` and ``FileSystem`` ports: thin, blocking, honest about errors.

Every call goes through ``os`` (or ctypes), so it releases the GIL while it waits; ``os`` tries
again after EINTR. ENOSPC, EDQUOT and EFBIG become OutOfSpaceError, a lack of descriptors or memory
becomes OutOfResourcesError, whatever else goes wrong StorageError. A sync that fails is
SyncFailedError for each errno; it is never tried again, because the kernel marks the lost pages
clean. What ``syncfs`` is trusted with is in ``whole_sync.py``.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from icecore.errors import IcecoreError, OutOfResourcesError, OutOfSpaceError, StorageError
from icecore_node.ports import Buffer, SyncFailedError
from icecore_node.storage.files.whole_sync import SyncFs, WholeSync

_OUT_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_OUT_OF_RESOURCES = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.ENOBUFS}
)
_DESCRIPTORS = Path("/proc/self/fd")
_IOV_MAX = 1024
_SYNC_FILE_RANGE_WRITE = 2
_libc = ctypes.CDLL(None, use_errno=True)
_sync_file_range = getattr(_libc, "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


@contextmanager
def _errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _storage_error(error, what) from error


@contextmanager
def _sync_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _sync_error(error, what) from error


def _sync_error(error: OSError, what: str) -> SyncFailedError:
    return SyncFailedError(f"{what}: {error.strerror or error}", errno=error.errno or 0)


def _storage_error(error: OSError, what: str) -> IcecoreError:
    kind: type[IcecoreError] = StorageError
    if error.errno in _OUT_OF_SPACE:
        kind = OutOfSpaceError
    elif error.errno in _OUT_OF_RESOURCES:
        kind = OutOfResourcesError
    return kind(f"{what}: {error.strerror or error}", errno=error.errno or 0)


class OsFile:
    """One file descriptor."""

    __slots__ = ("_fd", "_name")

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self._name = name

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all bytes at ``position``; short writes and IOV_MAX are handled here."""
        try:
            expected = sum(map(len, buffers))
            if len(buffers) <= _IOV_MAX:
                written = os.pwritev(self._fd, buffers, position)
                if written == expected:
                    return
            else:
                written = 0
            self._pwritev_rest(buffers, position, written)
        except OSError as error:
            raise _storage_error(error, f"write {self._name} at {position}") from error

    def _pwritev_rest(self, buffers: Sequence[Buffer], position: int, skip: int) -> None:
        rest = [memoryview(buffer).cast("B") for buffer in buffers]
        first = 0
        position += skip
        while True:
            while first < len(rest) and skip >= len(rest[first]):
                skip -= len(rest[first])
                first += 1
            if first == len(rest):
                return
            rest[first] = rest[first][skip:]
            skip = os.pwritev(self._fd, rest[first : first + _IOV_MAX], position)
            if skip == 0:
                raise OSError(errno.EIO, "wrote nothing")
            position += skip

    def pread(self, length: int, position: int) -> bytes:
        """Up to ``length`` bytes; fewer only at the end of the file."""
        try:
            data = os.pread(self._fd, length, position)
            if len(data) == length or not data:
                return data
            parts, got = [data], len(data)
            while got < length and (data := os.pread(self._fd, length - got, position + got)):
                parts.append(data)
                got += len(data)
        except OSError as error:
            raise _storage_error(error, f"read {self._name} at {position}") from error
        return b"".join(parts)

    def start_write_back(self, position: int, length: int) -> None:
        """Let the kernel begin to write these bytes; where it cannot, fdatasync does it all.

        Its result means nothing: this flag neither waits nor takes an error away from fdatasync.
        """
        if _sync_file_range is not None:
            _sync_file_range(self._fd, position, length, _SYNC_FILE_RANGE_WRITE)

    def fdatasync(self) -> None:
        """Make written bytes durable."""
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise _sync_error(error, f"fdatasync {self._name}") from error

    def drop_cached(self, position: int) -> None:
        """Let the kernel forget clean pages from the one that holds ``position`` on.

        Parts of pages would be kept, hence the whole page.
        """
        start = position - position % mmap.PAGESIZE
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._fd, start, 0, os.POSIX_FADV_DONTNEED)

    def allocate(self, position: int, length: int) -> None:
        """Reserve ``length`` bytes from ``position`` on (reads as zeros)."""
        with _errors(f"allocate {length} bytes in {self._name}"):
            os.posix_fallocate(self._fd, position, length)

    def truncate(self, length: int) -> None:
        """Cut or extend to ``length`` bytes."""
        with _errors(f"truncate {self._name}"):
            os.ftruncate(self._fd, length)

    def size(self) -> int:
        """Length in bytes."""
        with _errors(f"stat {self._name}"):
            return os.fstat(self._fd).st_size

    def next_data(self, position: int) -> int:
        """The first position from here on that may hold anything but zeros; the size, if none.

        What was read ahead into the page cache counts as data, so this file reads ahead no more.
        """
        try:
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)
            return os.lseek(self._fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return self.size()
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return position
            raise _storage_error(error, f"seek {self._name} from {position}") from error

    def close(self) -> None:
        """Close; idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsFileSystem:
    """The tree below one data folder; nothing outside it can be named."""

    def __init__(self, root: Path, *, syncfs: SyncFs = "auto", sync_threads: int = 2) -> None:
        """
        Args:
            root: The data folder; must exist.
            syncfs: See ``whole_sync.py``; ``always`` vouches for a shared mount or another kind.
            sync_threads: How many threads call ``sync_all``.

        Raises:
            StorageError, OutOfResourcesError: The folder cannot be opened.
            ConfigurationError: ``always``, and ``syncfs`` cannot be trusted here.
        """
        self._root = root
        with _errors(f"open {root}"):
            self._root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _errors(f"prepare syncfs of {root}"):
                self._whole = WholeSync.of(root, syncfs, sync_threads)
        except BaseException:
            os.close(self._root_fd)
            raise
        self._synced_parents: set[str] = set()
        """Folders that were synced since the last folder was made in them."""

    def _check(self, name: str) -> str:
        if name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise StorageError(f"{name!r} leaves the data folder")
        return name or "."

    def open(self, name: str, *, create: bool = False) -> OsFile:
        """Open for reading and writing. Raises StorageError when it is missing (or, with
        ``create``, when it exists)."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        with _errors(f"open {name}"):
            return OsFile(os.open(self._check(name), flags, 0o640, dir_fd=self._root_fd), name)

    def exists(self, name: str) -> bool:
        """Return whether the file or folder is there."""
        try:
            os.stat(self._check(name), dir_fd=self._root_fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise _storage_error(error, f"stat {name}") from error
        return True

    def make_dirs(self, *names: str) -> None:
        """Create folders and their parents; each is durable in its parent on return.

        One that exists may have been made by a call, or a process, whose sync of the parent never
        came: the parent is synced once in the life of this object, and again until it succeeds.
        """
        parents: dict[str, None] = {}
        for name in names:
            parent = ""
            for part in self._check(name).split("/"):
                folder = f"{parent}/{part}" if parent else part
                if not self.exists(folder):
                    self._synced_parents.discard(parent)
                    with _errors(f"create folder {folder}"):
                        os.mkdir(folder, 0o750, dir_fd=self._root_fd)
                parents[parent] = None
                parent = folder
        for parent in parents:
            if parent not in self._synced_parents:
                self.sync_dir(parent)
                self._synced_parents.add(parent)

    def list_dir(self, name: str) -> list[str]:
        """Sorted names in a folder; empty when it does not exist."""
        try:
            return sorted(os.listdir(self._root / self._check(name)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _storage_error(error, f"list {name}") from error

    def rename(self, old: str, new: str) -> None:
        """Atomic replace; durable after ``sync_dir`` of both folders."""
        with _errors(f"rename {old} to {new}"):
            os.rename(
                self._check(old),
                self._check(new),
                src_dir_fd=self._root_fd,
                dst_dir_fd=self._root_fd,
            )

    def unlink(self, name: str) -> None:
        """Remove a file; durable after ``sync_dir`` of its folder."""
        with _errors(f"unlink {name}"):
            os.unlink(self._check(name), dir_fd=self._root_fd)

    def sync_dir(self, name: str) -> None:
        """Make creates, renames and removals in this folder durable."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        with _errors(f"open folder {name or '.'}"):
            fd = os.open(self._check(name), flags, dir_fd=self._root_fd)
        try:
            with _sync_errors(f"fsync folder {name or '.'}"):
                os.fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self) -> None:
        """One ``syncfs``. Its error is fail-stop like any fsync error."""
        if self._whole is None:
            raise StorageError("syncfs is not safe here")
        with _errors("open for syncfs"):
            fd = self._whole.own()
        with _sync_errors("syncfs"):
            self._whole.sync(fd)

    @property
    def can_sync_all(self) -> bool:
        """Return whether one ``syncfs`` replaces many fdatasyncs: see ``whole_sync.py``."""
        return self._whole is not None

    def space(self) -> tuple[int, int]:
        """(used, free) bytes of the file system; free is what an ordinary user may still take."""
        with _errors("statvfs"):
            stat = os.fstatvfs(self._root_fd)
        return (stat.f_blocks - stat.f_bfree) * stat.f_frsize, stat.f_bavail * stat.f_frsize

    def descriptors(self) -> tuple[int, int]:
        """(used, free) of the process; free is 0 when there is none left even to count them."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        try:
            used = os.stat(_DESCRIPTORS).st_size  # since Linux 6.2; a list of 5,000 takes 10 ms
            if used == 0:
                used = len(os.listdir(_DESCRIPTORS)) - 1  # but for the one that lists them
        except OSError as error:
            with _errors("count descriptors"):
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
            used = limit
        return used, max(0, limit - used)

    def close(self) -> None:
        """Forget the folder; idempotent."""
        if self._whole is not None:
            self._whole.close()
        fd, self._root_fd = self._root_fd, -1
        if fd >= 0:
            os.close(fd)
