"""Runs all tests in lanes: one that computes beside one that waits, and tests that need quiet last.

    python -m tests.lanes.run [arguments of pytest]

A line a minute says where each lane is; failures are printed together at the end, behind them the
seconds by kind and step, and what was left out. ``build/test-run`` keeps the output of each lane,
``times.json`` and ``slowest.txt``. The last line adds up the counts of all lanes.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.lanes import records
from tests.lanes.recorder import FOLDER_VARIABLE
from tests.lanes.records import Ended, Records

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "test-run"
STEPS = ROOT / "build" / "times"
"""Folder in which ``.ci/run`` leaves the times of the steps before this one."""
PROGRESS_S = 60.0
LANE_LIMIT_S = 3600.0
END_S = 60.0
"""Time that an interrupted lane has to stop its servers."""
_POLL_S = 0.5

COMPUTING = ("unit", "scenarios", "conformance", "model", "chaos", "lanes", "simulation")
WAITING = ("cluster", "spark")
ELSEWHERE = ("deploy",)
"""In no lane: they need a Docker daemon or a Kubernetes, and have commands of their own."""


@dataclass(slots=True, eq=False)
class Lane:
    """One pytest with workers of its own."""

    name: str
    arguments: Sequence[str]
    nice: int = 0
    behind: "Lane | None" = None
    """The lane that has to end before this one starts."""
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    records: Records = field(init=False)

    def __post_init__(self) -> None:
        self.records = Records(FOLDER / self.name)

    @property
    def log(self) -> Path:
        """All that pytest prints."""
        return FOLDER / f"{self.name}.log"

    @property
    def times(self) -> Path:
        """A JSON object, once the lane has ended."""
        return FOLDER / f"{self.name}.json"

    def start(self) -> None:
        """Start pytest in a process that sees all it leaves behind."""
        self.records.folder.mkdir(parents=True)
        timed = [sys.executable, "scripts/timed.py", "--out", str(self.times)]
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "tests.lanes.recorder"]
        command = [*timed, "--nice", str(self.nice), "--", *pytest, *self.arguments]
        self.started_s = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Worlds order sets by hashes; with fixed ones `make sim SEED=…` replays a red one.
                env={
                    **os.environ,
                    "PYTHONHASHSEED": "0",
                    FOLDER_VARIABLE: str(self.records.folder),
                },
            )

    def is_running(self) -> bool:
        """Return whether the lane has not ended; end a lane that takes an hour."""
        assert self.process is not None
        if self.process.poll() is not None:
            return False
        if time.monotonic() - self.started_s > LANE_LIMIT_S:
            say(f"{self.name} is ended: it took more than {LANE_LIMIT_S / 60:.0f} minutes")
            self.process.terminate()
        return True

    def status(self) -> int:
        """The status of the ended process; a lane with all tests deselected has not failed."""
        assert self.process is not None
        no_tests = 5
        status = self.process.returncode
        return 0 if status == no_tests and not self.records.collected else status

    def place(self) -> str:
        """Return how far it is."""
        if not self.records.collected:
            return f"{self.name} collects"
        done, failed = len(self.records.ended), self.records.outcomes()["failed"]
        text = f"{self.name} {done} of {self.records.collected}"
        if failed:
            text += f", {failed} failed"
        running = [name.removeprefix("tests/") for name in self.records.running.values()]
        return f"{text}, at {', '.join(sorted(running))}" if running else text

    def failure_text(self) -> str:
        """The log from the first failure on, or its end where pytest broke off."""
        lines = self.log.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines):
            if line.startswith("=") and ("FAILURES" in line or "ERRORS" in line):
                return "\n".join(lines[number:])
        return "\n".join(lines[-40:])


_started_s = time.monotonic()


def say(text: str) -> None:
    """Print a line with minutes and seconds since the start."""
    minutes, seconds = divmod(int(time.monotonic() - _started_s), 60)
    print(f"{minutes:02}:{seconds:02}  {text}", flush=True)


def lanes(extra: Sequence[str]) -> tuple[list[Lane], list[str]]:
    """The lanes, and what no lane can run."""
    left_out = []
    waiting = [f"tests/{name}" for name in WAITING]
    if subprocess.run([sys.executable, "-c", "import pyspark"], capture_output=True).returncode:
        waiting.remove("tests/spark")
        left_out.append("tests/spark: the extra 'spark' is not installed; `make setup-spark` does")
    compute = ["-n", os.environ.get("WORKERS", "3"), "--dist", "worksteal"]
    wait = ["-n", os.environ.get("WAIT_WORKERS", "3"), "--dist", "loadgroup"]
    crowded = ["-o", "timeout=360"]  # twice what a test has that runs alone
    # Two of these at a time would write the same file.
    common = ["-p", "no:cacheprovider", *extra]
    # The lanes of clusters have the processors when they need them; a limit of time in a test that
    # computes counts its own seconds (tests/support/fair_loop.py).
    computing = Lane("compute", [*compute, *(f"tests/{x}" for x in COMPUTING), *common], nice=10)
    clusters = Lane("wait", [*wait, *crowded, "-m", "not alone", *waiting, *common])
    alone = Lane("alone", ["-m", "alone", *waiting, *common], behind=clusters)
    return [computing, clusters, alone], left_out


def follow(running: Sequence[Lane]) -> None:
    """Start each lane when its turn has come, and return when all have ended."""
    said_s = time.monotonic()
    later, active = list(running), list[Lane]()
    while later or active:
        for lane in list(later):
            if lane.behind not in (*later, *active):
                later.remove(lane)
                active.append(lane)
                lane.start()
                say(f"{lane.name} starts; its output is in {os.path.relpath(lane.log, ROOT)}")
        time.sleep(_POLL_S)
        for lane in list(active):
            is_running = lane.is_running()
            for ended in lane.records.refresh():
                if ended.outcome == "failed":
                    say(f"failed: {ended.name}")
            if not is_running:
                active.remove(lane)
                say(f"{lane.name} has ended: {records.closing_line(lane.records.outcomes())}")
        if active and time.monotonic() - said_s >= PROGRESS_S:
            said_s = time.monotonic()
            say("; ".join(lane.place() for lane in active))


def steps(run: Sequence[Lane]) -> list[dict[str, object]]:
    """Times of all steps that have been written."""
    before = [path for path in (STEPS / "setup.json", STEPS / "check.json") if path.exists()]
    ended = [lane.times for lane in run if lane.times.exists()]
    return [json.loads(path.read_text()) for path in (*before, *ended)]


def report(run: Sequence[Lane], left_out: Sequence[str]) -> int:
    """Print failures, times, what was left out, and the sum; return the exit status."""
    ended: list[Ended] = [each for lane in run for each in lane.records.ended]
    outcomes: Counter[str] = Counter()
    for lane in run:
        outcomes += lane.records.outcomes()
        if lane.status():
            print(f"\n== {lane.name} failed (status {lane.status()})\n{lane.failure_text()}")
            if not lane.records.outcomes()["failed"]:
                outcomes["failed"] += 1  # pytest broke off, or a process was left behind
    taken = steps(run)
    slowest = records.slowest_table(ended)
    (FOLDER / "slowest.txt").write_text("\n".join([*slowest, ""]))
    (FOLDER / "times.json").write_text(json.dumps({"steps": taken}, indent=1) + "\n")
    wall_s = time.monotonic() - _started_s
    print("\n== times (build/test-run/slowest.txt has the slowest tests)")
    print("\n".join([*records.kinds_table(ended), "", *records.steps_table(taken)]))
    print(f"all lanes together: {wall_s:.0f} wall seconds")
    waiting = sorted(set().union(*(lane.records.waiting for lane in run)))
    reasons = [*left_out, *records.left_out(ended)]
    reasons += [f"waits for its turn in the rotation: {name}" for name in waiting]
    if reasons:
        print("\n== left out (`make test-all` takes all)\n" + "\n".join(reasons))
    print(records.closing_line(outcomes), flush=True)
    return int(any(lane.status() for lane in run))


def end(lanes_: Sequence[Lane]) -> None:
    """Interrupt what runs: fixtures stop their servers, and each lane kills what stays."""
    running = [each.process for each in lanes_ if each.process is not None]
    say("interrupted: the lanes end")
    for process in running:
        process.send_signal(signal.SIGINT)
    for process in running:
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()


def main() -> int:
    """Entry point; arguments go to every pytest."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    if subprocess.run([sys.executable, "-m", "tests.support.rotation"], cwd=ROOT).returncode:
        return 2  # the number is wrong, and that was said
    all_lanes, left_out = lanes(sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        follow(all_lanes)
    except KeyboardInterrupt:
        end(all_lanes)
        return 128 + signal.SIGINT
    return report(all_lanes, left_out)


if __name__ == "__main__":
    sys.exit(main())
