"""Open files of logs: bounded, never closed under a user, reopened when needed."""

import threading

import pytest

from icecore.errors import NotReplicaError, OutOfResourcesError, StorageError
from icecore_node.ports import File
from icecore_node.storage.files.open_files import LogFile, OpenFiles
from tests.simulation.disk import SimDisk, SimFileSystem


class Files:
    """A simulated disk that counts what is open."""

    def __init__(self, count: int, files_max: int, descriptors: int = 1000) -> None:
        self.system = SimFileSystem(SimDisk(), None)
        self.descriptors = descriptors
        self.opened: list[File] = []
        for number in range(count):
            self.system.open(f"{number}", create=True)
        self.open_files = OpenFiles(files_max, self._open)
        self.logs = [LogFile(number, f"{number}", self.open_files) for number in range(count)]

    def _open(self, name: str) -> File:
        if self.count() >= self.descriptors:
            raise OutOfResourcesError("too many open files")
        file = self.system.open(name)
        self.opened.append(file)
        return file

    def count(self) -> int:
        return sum(not file._closed for file in self.opened)  # type: ignore[attr-defined]


def use(log: LogFile) -> None:
    with log.using() as file:
        file.pwritev([b"x"], 0)


def test_the_least_recently_used_files_are_closed_first() -> None:
    files = Files(10, 3)
    for log in files.logs:
        use(log)
    assert files.count() == len(files.open_files) == 3
    before = len(files.opened)
    use(files.logs[9])
    assert len(files.opened) == before
    use(files.logs[0])
    assert len(files.opened) == before + 1


def test_a_file_in_use_is_not_closed_and_counts_again_afterwards() -> None:
    files = Files(10, 2)
    with files.logs[0].using() as file:
        for log in files.logs[1:]:
            use(log)
        assert files.open_files.make_room(100) == 1
        file.pwritev([b"y"], 0)
        file.fdatasync()
        assert not files.logs[0].release()
    use(files.logs[1])
    use(files.logs[2])
    assert files.count() == 2


def test_files_in_use_are_not_met_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of open files, to look at all for each that is opened is most of the work."""
    files = Files(200, 100)
    for log in files.logs[:10]:
        log.hold()
    for log in files.logs[10:100]:
        use(log)
    looked: list[LogFile] = []
    release = LogFile.release

    def counted(log: LogFile) -> bool:
        looked.append(log)
        return release(log)

    monkeypatch.setattr(LogFile, "release", counted)
    for log in files.logs[100:]:
        use(log)
    assert len(files.open_files) == 100
    assert len(looked) <= 100 + 2 * 10


def test_a_missing_descriptor_is_taken_from_idle_files() -> None:
    files = Files(20, 100, descriptors=5)
    for log in files.logs:
        use(log)
    assert files.count() <= 5
    held = [log.hold() for log in files.logs[:5]]
    with pytest.raises(OutOfResourcesError):
        files.logs[10].hold()
    for log in files.logs[:5]:
        log.leave()
    assert len(held) == 5
    use(files.logs[10])


def test_a_closed_log_has_no_new_users_and_waits_for_the_last() -> None:
    files = Files(2, 2)
    with files.logs[0].using() as file:
        assert not files.logs[0].close()
        assert file.size() == 0
    with pytest.raises(StorageError, match="closed"):
        file.size()
    with pytest.raises(NotReplicaError):
        files.logs[0].hold()
    assert files.logs[1].close()
    assert len(files.open_files) == 0


def test_many_threads_share_few_descriptors() -> None:
    files = Files(12, 3)
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(300):
                use(files.logs[(number * 5 + turn * 7) % 12])
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    use(files.logs[0])
    assert problems == []
    assert files.count() == len(files.open_files) <= 3
