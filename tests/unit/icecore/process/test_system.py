"""The facts that a process learns of its system: how many files it may open, and which boot this
is."""

import subprocess
import sys
from pathlib import Path

import pytest

from icecore.process import system


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
