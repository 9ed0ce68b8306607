"""Suite for every ``FileSystem``: the real one, and the one of the simulator.

Subclasses supply the fixture ``fs``: an empty data folder.
"""

from contextlib import AbstractContextManager

import pytest

from icecore.errors import OutOfResourcesError, StorageError
from icecore_node.ports import FileSystem, SyncFailedError


class FileSystemConformance:
    """Inherit, and define ``fs`` and the two faults."""

    @pytest.fixture
    def fs(self) -> FileSystem:
        raise NotImplementedError

    def fail_next_sync(self, fs: FileSystem) -> None:
        """The next fdatasync fails."""
        raise NotImplementedError

    def without_descriptors(self, fs: FileSystem) -> AbstractContextManager[None]:
        """Nothing can be opened in the block."""
        raise NotImplementedError

    def test_written_bytes_are_read_back(self, fs: FileSystem) -> None:
        file = fs.open("a", create=True)
        file.pwritev([b"abc", bytearray(b"def"), memoryview(b"ghi")], 0)
        file.pwritev([b"XY"], 4)
        assert file.pread(100, 0) == b"abcdXYghi"
        assert file.pread(3, 7) == b"hi"
        assert file.pread(3, 9) == b""
        assert file.size() == 9
        file.fdatasync()
        file.close()
        file.close()
        assert fs.open("a").pread(9, 0) == b"abcdXYghi"

    def test_write_back_may_start_before_the_sync(self, fs: FileSystem) -> None:
        file = fs.open("a", create=True)
        file.pwritev([b"abc"], 5)
        file.start_write_back(5, 3)
        file.start_write_back(0, 1 << 20)
        file.fdatasync()
        assert file.pread(100, 0) == bytes(5) + b"abc"

    def test_what_is_durable_or_waits_to_be_written_survives_a_dropped_cache(
        self, fs: FileSystem
    ) -> None:
        file = fs.open("a", create=True)
        file.pwritev([b"a" * 5000], 0)
        file.fdatasync()
        file.pwritev([b"b" * 100], 5000)
        for position in (0, 1, 4999, 5050, 1 << 20):
            file.drop_cached(position)
        assert file.pread(10_000, 0) == b"a" * 5000 + b"b" * 100

    def test_many_buffers_are_written_in_order(self, fs: FileSystem) -> None:
        file = fs.open("a", create=True)
        buffers = [bytes([number % 256]) * (number % 7) for number in range(5000)]
        file.pwritev(buffers, 11)
        assert file.pread(1 << 20, 0) == bytes(11) + b"".join(buffers)

    def test_a_write_behind_the_end_leaves_zeros(self, fs: FileSystem) -> None:
        file = fs.open("a", create=True)
        file.pwritev([b"x"], 1000)
        assert file.pread(2000, 0) == bytes(1000) + b"x"

    def test_allocated_space_reads_as_zeros_and_keeps_data(self, fs: FileSystem) -> None:
        file = fs.open("a", create=True)
        file.pwritev([b"data"], 0)
        file.allocate(0, 8192)
        assert file.size() == 8192
        assert file.pread(10, 0) == b"data" + bytes(6)

    def test_space_without_data_is_passed_over(self, fs: FileSystem) -> None:
        file = fs.open("a", create=True)
        assert file.next_data(0) == 0
        file.allocate(0, 1 << 20)
        file.pwritev([b"x" * 10], 0)
        file.pwritev([b"x" * 10], 1 << 19)
        file.fdatasync()
        assert file.next_data(5) == 5
        behind = file.next_data(10)
        assert 10 <= behind <= 1 << 19, "it may be cautious, and must see what is there"
        assert file.next_data(1 << 19) == 1 << 19
        found = file.next_data((1 << 19) + 10)
        assert not any(file.pread(found, (1 << 19) + 10)), "only zeros are passed over"
        assert file.next_data(1 << 20) == file.next_data(2 << 20) == file.size()

    def test_truncate_cuts_and_extends(self, fs: FileSystem) -> None:
        file = fs.open("a", create=True)
        file.pwritev([b"abcdef"], 0)
        file.truncate(3)
        file.truncate(5)
        assert file.pread(10, 0) == b"abc\0\0"

    def test_create_demands_a_new_name_and_open_an_old_one(self, fs: FileSystem) -> None:
        with pytest.raises(StorageError):
            fs.open("a")
        fs.open("a", create=True).close()
        with pytest.raises(StorageError):
            fs.open("a", create=True)

    def test_folders(self, fs: FileSystem) -> None:
        with pytest.raises(StorageError):
            fs.open("x/y/file", create=True)
        fs.make_dirs("x/y")
        fs.make_dirs("x/y")
        fs.open("x/y/b", create=True).close()
        fs.open("x/y/a", create=True).close()
        fs.sync_dir("x/y")
        fs.sync_dir("")
        assert fs.list_dir("x") == ["y"]
        assert fs.list_dir("x/y") == ["a", "b"]
        assert fs.list_dir("nowhere") == []
        assert fs.exists("x/y") and fs.exists("x/y/a") and not fs.exists("x/z")
        assert not fs.exists("x/y/a/deeper")

    def test_many_folders_at_once(self, fs: FileSystem) -> None:
        fs.make_dirs("x/old")
        fs.make_dirs("x/a", "x/b/c", "x/old", "x/a", "y")
        assert fs.list_dir("x") == ["a", "b", "old"]
        assert fs.list_dir("x/b") == ["c"]
        assert fs.list_dir("") == ["x", "y"]

    def test_rename_replaces_and_unlink_removes(self, fs: FileSystem) -> None:
        fs.make_dirs("d")
        for name in ("a", "d/b"):
            file = fs.open(name, create=True)
            file.pwritev([name.encode()], 0)
        fs.rename("a", "d/b")
        assert not fs.exists("a")
        assert fs.open("d/b").pread(10, 0) == b"a"
        fs.unlink("d/b")
        assert fs.list_dir("d") == []
        for gone in (lambda: fs.unlink("d/b"), lambda: fs.rename("d/b", "c")):
            with pytest.raises(StorageError):
                gone()

    def test_an_open_file_outlives_its_name(self, fs: FileSystem) -> None:
        file = fs.open("a", create=True)
        file.pwritev([b"abc"], 0)
        fs.unlink("a")
        assert file.pread(3, 0) == b"abc"

    def test_a_closed_file_is_an_error(self, fs: FileSystem) -> None:
        file = fs.open("a", create=True)
        file.close()
        with pytest.raises(StorageError):
            file.pread(1, 0)

    def test_a_failed_sync_says_that_it_was_the_sync(self, fs: FileSystem) -> None:
        file = fs.open("a", create=True)
        file.pwritev([b"x"], 0)
        self.fail_next_sync(fs)
        with pytest.raises(SyncFailedError):
            file.fdatasync()

    def test_without_descriptors_nothing_opens_and_nothing_is_lost(self, fs: FileSystem) -> None:
        fs.make_dirs("d")
        file = fs.open("d/a", create=True)
        file.pwritev([b"abc"], 0)
        with self.without_descriptors(fs):
            for attempt in (
                lambda: fs.open("d/a"),
                lambda: fs.open("d/b", create=True),
                lambda: fs.sync_dir("d"),
            ):
                with pytest.raises(OutOfResourcesError):
                    attempt()
            assert not fs.exists("d/b")
            file.fdatasync()
            assert file.pread(3, 0) == b"abc"
        fs.sync_dir("d")
        assert fs.open("d/a").pread(3, 0) == b"abc"

    def test_descriptors_are_counted(self, fs: FileSystem) -> None:
        used, free = fs.descriptors()
        assert used >= 0 and free > 0

    def test_space(self, fs: FileSystem) -> None:
        used, free = fs.space()
        assert used >= 0 and free > 0
