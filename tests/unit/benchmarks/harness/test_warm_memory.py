"""Memory that is held for a measurement, and let go of as others take it."""

import subprocess
import sys
from typing import Any

import pytest

from benchmarks.harness import warm_memory
from benchmarks.harness.warm_memory import MIB, PIECE_BYTES, released_bytes

HELD = 8 * PIECE_BYTES


@pytest.mark.parametrize(
    ("free_bytes", "wanted_free_bytes", "released"),
    [
        (100 * MIB, 100 * MIB, 0),
        (200 * MIB, 100 * MIB, 0),
        (100 * MIB - 1, 100 * MIB, PIECE_BYTES),
        (100 * MIB - PIECE_BYTES, 100 * MIB, PIECE_BYTES),
        (100 * MIB - PIECE_BYTES - 1, 100 * MIB, 2 * PIECE_BYTES),
        (0, 100 * HELD, HELD),
    ],
)
def test_what_others_took_is_let_go(free_bytes: int, wanted_free_bytes: int, released: int) -> None:
    assert released_bytes(free_bytes, wanted_free_bytes, HELD) == released


def test_nothing_is_let_go_when_nothing_is_held() -> None:
    assert released_bytes(0, MIB, 0) == 0


def test_memory_is_held_within_it_and_free_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[subprocess.Popen[bytes]] = []

    class Kept(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            children.append(self)

    monkeypatch.setattr(subprocess, "Popen", Kept)
    with warm_memory.warm_memory(HELD):
        [child] = children
        assert child.poll() is None
    assert child.returncode == 0


def test_a_child_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    failing = pytest.raises(RuntimeError, match="128 MiB of memory could not be touched")
    with failing, warm_memory.warm_memory(HELD):
        pass


def test_who_is_asked_for_an_unknown_line_says_so() -> None:
    with pytest.raises(RuntimeError, match="no Nonsense"):
        warm_memory.memory_bytes("Nonsense")


def test_the_child_ends_with_its_input() -> None:
    command = [sys.executable, "-m", "benchmarks.harness.warm_memory", str(HELD)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.stdin.close()  # as when its parent is killed
        assert child.wait(10) == 0
