"""The real file system: the common suite, and what only a real disk can do."""

import errno
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from icecore.errors import ConfigurationError, OutOfSpaceError, StorageError
from icecore_node.ports import FileSystem, SyncFailedError
from icecore_node.storage.files.file_system import OsFileSystem
from tests.conformance.file_system_suite import FileSystemConformance


class TestOsFileSystem(FileSystemConformance):
    """icecore_node.storage.files.file_system."""

    @pytest.fixture
    def fs(self, tmp_path: Path) -> Iterator[OsFileSystem]:
        fs = OsFileSystem(tmp_path)
        yield fs
        fs.close()

    @pytest.fixture(autouse=True)
    def _patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def fail_next_sync(self, fs: FileSystem) -> None:
        real, failed = os.fdatasync, list[int]()

        def fdatasync(fd: int) -> None:
            if not failed:
                failed.append(fd)
                raise OSError(errno.ENOMEM, "whatever the kernel calls it")
            real(fd)

        self._monkeypatch.setattr(os, "fdatasync", fdatasync)

    @contextmanager
    def without_descriptors(self, fs: FileSystem) -> Iterator[None]:
        def refuse(*_: object, **__: object) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        with self._monkeypatch.context() as patch:
            patch.setattr(os, "open", refuse)
            yield

    def test_a_folder_is_synced_again_after_a_sync_that_failed(
        self, fs: OsFileSystem, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fs.make_dirs("segments")
        real, synced = os.fsync, list[str]()

        def fsync(fd: int) -> None:
            synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
            if len(synced) == 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(fd)

        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(SyncFailedError):
            fs.make_dirs("segments/topic")
        fs.make_dirs("segments/topic")
        fs.make_dirs("segments/topic")
        assert synced == ["segments", "segments"]

    def test_a_folder_of_an_earlier_process_is_synced_once(
        self, fs: OsFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The earlier process may have ended between making the folder and syncing its parent."""
        (tmp_path / "segments" / "topic").mkdir(parents=True)
        real, count = os.fsync, list[int]()

        def fsync(fd: int) -> None:
            count.append(fd)
            real(fd)

        monkeypatch.setattr(os, "fsync", fsync)
        for _ in range(3):
            fs.make_dirs("segments/topic")
        assert len(count) == 2

    def test_descriptors_are_those_of_the_process(self, fs: OsFileSystem) -> None:
        used, free = fs.descriptors()
        file = fs.open("a", create=True)
        assert fs.descriptors() == (used + 1, free - 1)
        file.close()

    def test_kernels_that_do_not_count_descriptors_have_them_listed(
        self, fs: OsFileSystem, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected, real = fs.descriptors(), os.stat

        def before_6_2(path: Any, **kwargs: Any) -> Any:
            return SimpleNamespace(st_size=0) if "fd" in str(path) else real(path, **kwargs)

        monkeypatch.setattr(os, "stat", before_6_2)
        assert fs.descriptors() == expected

    def test_names_cannot_leave_the_folder(self, fs: OsFileSystem, tmp_path: Path) -> None:
        for name in ("/etc/passwd", "../x", "a/../../x", "a\0b"):
            with pytest.raises(StorageError):
                fs.open(name, create=True)
        (tmp_path / "link").symlink_to("/etc/passwd")
        with pytest.raises(StorageError):
            fs.open("link")

    def test_short_writes_are_continued(
        self, fs: OsFileSystem, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.pwrite

        def short(fd: int, buffers: list[bytes], position: int) -> int:
            return real(fd, b"".join(buffers)[:7], position)

        monkeypatch.setattr(os, "pwritev", short)
        file = fs.open("a", create=True)
        data = [bytes([number]) * number for number in range(20)]
        file.pwritev(data, 3)
        assert file.pread(1000, 3) == b"".join(data)

    def test_sync_all_is_refused_on_a_shared_mount(self, fs: OsFileSystem, tmp_path: Path) -> None:
        assert not fs.can_sync_all
        with pytest.raises(StorageError):
            fs.sync_all()
        forced = OsFileSystem(tmp_path, syncfs="always")
        forced.open("a", create=True).pwritev([b"x"], 0)
        forced.sync_all()
        forced.close()

    def test_sync_all_is_refused_where_it_hides_errors(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(platform, "release", lambda: "5.15.0-generic")
        with pytest.raises(ConfigurationError, match=r"needs Linux 5\.17"):
            OsFileSystem(tmp_path, syncfs="always")
        assert not OsFileSystem(tmp_path).can_sync_all

    def test_the_file_size_limit_is_out_of_space(self, tmp_path: Path) -> None:
        """EFBIG counts like ENOSPC; in a process of its own, because the limit is for all files."""
        code = (
            "import resource, signal, sys; from pathlib import Path\n"
            "from icecore.errors import ConfigurationError, OutOfSpaceError\n"
            "from icecore_node.storage.files.file_system import OsFileSystem\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
            "file = OsFileSystem(Path(sys.argv[1])).open('a', create=True)\n"
            "calls = (lambda: file.pwritev([bytes(9000)], 0), lambda: file.allocate(0, 9000))\n"
            "for call in calls:\n"
            "    try: call()\n"
            "    except OutOfSpaceError: print('full')\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=30
        )
        assert done.stdout == "full\nfull\n", done.stderr

    def test_a_full_disk(self, small_disk: Path) -> None:
        fs = OsFileSystem(small_disk)
        file = fs.open("a", create=True)
        with pytest.raises(OutOfSpaceError):
            file.allocate(0, 64 << 20)
        file.truncate(0)
        file.pwritev([b"x"], 0)
        with pytest.raises(OutOfSpaceError):
            file.pwritev([bytes(64 << 20)], 0)
        file.close()
        fs.close()


def test_limits_are_untouched() -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
