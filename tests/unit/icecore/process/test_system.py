"""The facts that a process learns of its system: how many files it may open, and which boot this
is."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from icecore.process import system
from tests.support import no_files


def limited(soft: int, hard: int, least: int) -> str:
    """Return the output of ``raise_descriptor_limit`` in a process with these limits."""
    code = (
        "import resource, sys\n"
        "from icecore.errors import ConfigurationError\n"
        "from icecore.process.system import raise_descriptor_limit\n"
        "soft, hard, least = map(int, sys.argv[1:])\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))\n"
        "try: print(raise_descriptor_limit(least), resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
        "except ConfigurationError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, *map(str, (soft, hard, least))]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()


def test_the_soft_limit_becomes_the_hard_one() -> None:
    assert limited(200, 1500, 1024) == "1500 1500"
    assert limited(1500, 1500, 1024) == "1500 1500"


def test_too_low_a_hard_limit_is_refused_with_advice() -> None:
    told = limited(200, 512, 1024)
    assert told.startswith("only 512 files and connections")
    assert "LimitNOFILE" in told


def test_the_boot_id_is_that_of_the_kernel_or_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert system.boot_id() == system.boot_id() != ""
    name = tmp_path / "boot_id"
    monkeypatch.setattr(system, "_BOOT_ID", name)
    assert system.boot_id() == ""
    name.write_text("one\n")
    assert system.boot_id() == "one"
    name.write_bytes(b"\xff")
    assert system.boot_id() == ""


def test_output_is_blocking_whoever_made_the_pipe() -> None:
    """Python drops what such a pipe has no room for, and says nothing."""
    code = (
        "import sys\n"
        "from icecore.process.system import open_standard_streams\n"
        "open_standard_streams()\n"
        "sys.stdout.write('x' * 500_000)\n"
    )
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    with subprocess.Popen([sys.executable, "-c", code], stdout=theirs) as process:
        os.close(theirs)
        size = 0
        while piece := os.read(ours, 1 << 12):
            time.sleep(0.001)  # slower than it writes
            size += len(piece)
    os.close(ours)
    assert (size, process.returncode) == (500_000, 0)


@pytest.mark.parametrize(
    ("kind", "said"), [*no_files.KINDS.items(), ("large", "more than 1,048,576 bytes")]
)
def test_a_small_file_is_a_file(tmp_path: Path, kind: str, said: str) -> None:
    with pytest.raises(OSError, match=said) as caught:
        system.read_small_file(no_files.make(tmp_path / "x", kind))
    assert caught.value.strerror is not None


def test_small_files_are_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for size in (0, 7, system.SMALL_FILE_BYTES_MAX):
        path.write_bytes(b"y" * size)
        assert system.read_small_file(path) == b"y" * size
    assert system.read_small_file(Path(os.devnull)) == b""
