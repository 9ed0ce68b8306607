"""Runs a command and writes how long it took, with every process that it left behind.

    python3 scripts/timed.py --out build/times/check.json -- make check

Needs nothing but Python, so that it can time the step that installs all else. The file gets
one JSON object: ``name``, ``status``, ``wall_s``, ``cpu_s`` (all descendants included) and
``left`` (command lines of processes that outlived the command by 20 seconds; they are killed).
Orphans become children of this process (``PR_SET_CHILD_SUBREAPER``), so their time counts as well.
The exit status is the command's, or 1 where something was left behind.
"""

import argparse
import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 20.0
"""A JVM needs some seconds to end after the program that started it, more on a busy machine."""
_POLL_S = 0.05


def become_subreaper() -> None:
    """Make orphaned descendants children of this process.

    Raises:
        OSError: The kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def children() -> list[int]:
    """Pids of the children that have not ended."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        found += [int(pid) for pid in (task / "children").read_text().split()]
    return [pid for pid in found if _is_alive(pid)]


def _is_alive(pid: int) -> bool:
    """Return whether a process has not ended. One that is about to run its program has no command
    line yet, as a zombie has none any more; the state tells them apart."""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    return False


def _command_line(pid: int) -> str:
    """Empty for a process that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return ""


def _reap() -> None:
    """Collect ended children, so that their processor time counts."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _end_the_rest() -> list[str]:
    """Wait for orphans, kill those that stay, and return their command lines."""
    deadline = time.monotonic() + GRACE_S
    while children() and time.monotonic() < deadline:
        _reap()
        time.sleep(_POLL_S)
    left = []
    while pids := children():
        for pid in pids:
            left.append(_command_line(pid))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
        _reap()
    _reap()
    return [line for line in left if line]


def run(command: Sequence[str], name: str) -> dict[str, object]:
    """Run the command to its end; SIGTERM and SIGINT are handed on to it."""
    become_subreaper()
    started = time.monotonic()
    # A shell starts background jobs with SIGINT ignored, and the command would inherit that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command)

    def hand_on(number: int, _frame: object) -> None:
        process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hand_on)
    status = process.wait()
    left = _end_the_rest()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "name": name,
        "status": status,
        "wall_s": round(time.monotonic() - started, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "left": left,
    }


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--nice", type=int, default=0, help="niceness to add")
    parser.add_argument("command", nargs="+", help="after --")
    options = parser.parse_args()
    if options.nice:
        os.nice(options.nice)
    result = run(options.command, options.out.stem)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result) + "\n")
    for line in result["left"]:  # type: ignore[attr-defined]
        print(f"{options.out.stem}: killed a process that was left behind: {line}", file=sys.stderr)
    status = int(str(result["status"]))
    return status if status > 0 else int(bool(status or result["left"]))


if __name__ == "__main__":
    sys.exit(main())
