"""syncfs: refused where it can't be trusted; an error reaches each thread that wrote."""

import errno
import platform
import threading
from pathlib import Path

import pytest

from icecore.errors import ConfigurationError
from icecore_node.storage.files import whole_sync
from icecore_node.storage.files.whole_sync import WholeSync


class FakeLibc:
    """``syncfs`` with the kernel's memory of errors: one per open descriptor."""

    def __init__(self) -> None:
        self.failing: set[int] = set()
        self.calls: list[int] = []

    def syncfs(self, fd: int) -> int:
        self.calls.append(fd)
        if fd in self.failing:
            self.failing.discard(fd)  # told once
            return -1
        return 0


@pytest.fixture
def libc(monkeypatch: pytest.MonkeyPatch) -> FakeLibc:
    fake = FakeLibc()
    monkeypatch.setattr(whole_sync, "_libc", fake)
    monkeypatch.setattr(whole_sync.ctypes, "get_errno", lambda: errno.EIO)
    return fake


@pytest.mark.parametrize("release", ["5.8.0", "5.16.20-arch1", "5.4.0-generic", "odd"])
def test_kernels_that_drop_errors_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    monkeypatch.setattr(platform, "release", lambda: release)
    with pytest.raises(ConfigurationError, match=r"Linux 5\.17"):
        WholeSync.of(tmp_path, "always", 1)
    assert WholeSync.of(tmp_path, "auto", 1) is None


@pytest.mark.parametrize(("kind", "flushes"), [("ext4", 0), ("xfs", 1)])
def test_only_ext4_flushes_the_drive_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, libc: FakeLibc, kind: str, flushes: int
) -> None:
    monkeypatch.setattr(whole_sync, "_mount", lambda _: (kind, True))
    synced: list[int] = []
    monkeypatch.setattr(whole_sync.os, "fdatasync", synced.append)
    whole = WholeSync.of(tmp_path, "auto", 1)
    assert whole is not None
    whole.sync(whole.own())
    assert (len(libc.calls), len(synced)) == (1, flushes)
    whole.close()


def test_other_kinds_and_shared_mounts_need_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found in (("btrfs", True), ("ext4", False)):
        monkeypatch.setattr(whole_sync, "_mount", lambda _, found=found: found)
        assert WholeSync.of(tmp_path, "auto", 1) is None
        assert WholeSync.of(tmp_path, "never", 1) is None
    whole = WholeSync.of(tmp_path, "always", 1)
    assert whole is not None
    whole.close()


def test_an_error_reaches_every_thread(tmp_path: Path, libc: FakeLibc) -> None:
    whole = WholeSync(tmp_path, is_flushing=True, threads=2)
    mine = whole.own()
    theirs: list[int] = []
    thread = threading.Thread(target=lambda: theirs.append(whole.own()))
    thread.start()
    thread.join()
    assert whole.own() == mine != theirs[0]
    libc.failing = {mine, theirs[0]}
    for fd in (mine, theirs[0]):
        with pytest.raises(OSError, match=r"\[Errno 5\]"):
            whole.sync(fd)
    with pytest.raises(OSError, match=r"\[Errno 5\]"):  # and nobody ever hears otherwise
        whole.sync(mine)
    whole.close()
