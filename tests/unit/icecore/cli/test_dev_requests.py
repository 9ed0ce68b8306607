"""Restarts that are asked for: who answers, and what is refused."""

import fcntl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore.cli import dev_requests
from icecore.errors import ConfigurationError, RequestTimeoutError, UnavailableError

LONG_S = 20.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """As an ``icecore dev`` owns it."""
    for name in ("coordinator", "node-1", "logs"):
        (tmp_path / name).mkdir()
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield tmp_path


def serve(folder: Path, why_not: str) -> threading.Thread:
    def run() -> None:
        while not (names := list(dev_requests.asked(folder))):
            continue
        dev_requests.answer(folder, names[0], why_not)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_answered(folder: Path) -> None:
    thread = serve(folder, "")
    dev_requests.ask(folder, "node-1", LONG_S)
    thread.join(LONG_S)
    assert list(dev_requests.asked(folder)) == []
    thread = serve(folder, "the port is taken")
    with pytest.raises(UnavailableError, match="the port is taken"):
        dev_requests.ask(folder, "node-1", LONG_S)
    thread.join(LONG_S)


def test_nobody_answers(folder: Path) -> None:
    with pytest.raises(RequestTimeoutError):
        dev_requests.ask(folder, "node-1", 0.1)
    assert list(dev_requests.asked(folder)) == []


@pytest.mark.parametrize("name", ["node-9", "logs", "../x", "node-1.done", ""])
def test_no_such_process(folder: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="there are coordinator, node-1"):
        dev_requests.ask(folder, name, LONG_S)
    assert not (folder / "restart").exists()


def test_no_owner(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no `icecore dev` runs"):
        dev_requests.ask(tmp_path, "node-1", LONG_S)
    (tmp_path / "lock").touch()
    with pytest.raises(ConfigurationError, match="no `icecore dev` runs"):
        dev_requests.ask(tmp_path, "node-1", LONG_S)
