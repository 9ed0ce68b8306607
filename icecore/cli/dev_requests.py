"""Requests of ``icecore dev restart`` to the ``icecore dev`` that runs: files in its folder.

``restart/NAME`` asks, ``restart/NAME.done`` answers with the error, or with nothing. Only one
process owns the folder (its ``lock``), and only that one answers.
"""

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

from icecore.errors import ConfigurationError, RequestTimeoutError, UnavailableError

_POLL_S = 0.05
_DONE = ".done"


def is_running(folder: Path) -> bool:
    """Return whether an ``icecore dev`` owns the folder."""
    try:
        with (folder / "lock").open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def ask(folder: Path, name: str, within_s: float) -> None:
    """Ask for a restart and wait until it is done.

    Raises:
        ConfigurationError: Nobody owns the folder, or it has no such process.
        UnavailableError: The process did not start; the message is its owner's.
        RequestTimeoutError: No answer within that time.
    """
    if not is_running(folder):
        raise ConfigurationError(f"no `icecore dev` runs on {folder}: start one there")
    place = folder / "restart"
    known = [each.name for each in sorted(folder.iterdir()) if _is_process(each)]
    if name not in known:
        raise ConfigurationError(f"no process {name!r}: there are {', '.join(known)}")
    place.mkdir(exist_ok=True)
    answer = place / f"{name}{_DONE}"
    answer.unlink(missing_ok=True)
    (place / name).touch()
    deadline = time.monotonic() + within_s
    while not answer.exists():
        if time.monotonic() > deadline:
            (place / name).unlink(missing_ok=True)
            raise RequestTimeoutError(f"{name} was not started again in {within_s:g} s")
        time.sleep(_POLL_S)
    if why := answer.read_text():
        raise UnavailableError(why)


def _is_process(path: Path) -> bool:
    return path.is_dir() and (path.name == "coordinator" or path.name.startswith("node-"))


def clear(folder: Path) -> None:
    """Forget what nobody waits for any more."""
    for path in (folder / "restart").glob("*"):
        path.unlink(missing_ok=True)


def asked(folder: Path) -> Iterator[str]:
    """Names for which somebody waits."""
    for path in (folder / "restart").glob("*"):
        if path.suffix != _DONE:
            yield path.name


def answer(folder: Path, name: str, why_not: str = "") -> None:
    """Say that it was done, or why not."""
    place = folder / "restart"
    part = place / f"{name}.part{_DONE}"
    part.write_text(why_not)
    part.rename(place / f"{name}{_DONE}")  # whole, whenever it is seen
    with contextlib.suppress(FileNotFoundError):
        (place / name).unlink()
