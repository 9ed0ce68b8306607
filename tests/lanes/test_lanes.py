"""A run of lanes: outcomes, seconds, what it left out, what tests left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts import timed as timed_script
from tests.lanes import records, run
from tests.lanes.recorder import FOLDER_VARIABLE
from tests.lanes.records import Ended, Records

ROOT = Path(__file__).parents[2]

SOME_TESTS = """
import pytest

def test_passes(): pass

def test_fails(): assert False

@pytest.mark.skip(reason="no such machine")
def test_is_left_out(): pass

@pytest.mark.xfail(reason="known")
def test_is_known(): assert False

@pytest.mark.xfail(reason="known", strict=True)
def test_is_better_than_known(): pass

@pytest.fixture
def broken():
    yield
    raise OSError

def test_breaks_at_its_end(broken): pass
"""
OUTCOMES = {
    "test_passes": "passed",
    "test_fails": "failed",
    "test_is_left_out": "skipped",
    "test_is_known": "xfailed",
    "test_is_better_than_known": "failed",
    "test_breaks_at_its_end": "failed",
}


def timed(out: Path, *command: str, **environment: str) -> tuple[int, dict[str, object]]:
    ended = subprocess.run(
        [sys.executable, "scripts/timed.py", "--out", str(out), "--", *command],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        timeout=60,
    )
    return ended.returncode, json.loads(out.read_text())


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_each_test_is_recorded_once(workers: list[str], tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "test_some.py").write_text(SOME_TESTS)
    options = ["-q", "-p", "tests.lanes.recorder", "-p", "no:cacheprovider", "-c", os.devnull]
    command = [sys.executable, "-m", "pytest", *options, *workers, str(tmp_path)]
    variables = {FOLDER_VARIABLE: str(tmp_path / "records")}
    status, result = timed(tmp_path / "some.json", *command, **variables)
    assert (status, result["status"], result["left"]) == (1, 1, [])
    found = Records(tmp_path / "records")
    found.refresh()
    assert found.collected == len(OUTCOMES)
    assert {each.name.rpartition("::")[2]: each.outcome for each in found.ended} == OUTCOMES
    assert len(found.ended) == len(OUTCOMES) and not found.running
    assert records.left_out(found.ended) == ["1 test: no such machine"]


def test_what_a_command_leaves_behind_is_a_failure_and_killed(tmp_path: Path) -> None:
    sleeper = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid)"
    kept = tmp_path / "pid"
    code = f"{sleeper[:-5]}.pid, file=open({str(kept)!r}, 'w'))"
    status, result = timed(tmp_path / "left.json", sys.executable, "-c", code)
    assert (status, result["status"], result["left"]) == (1, 0, ["sleep 600"])
    assert not Path(f"/proc/{kept.read_text().strip()}").exists()


def test_processor_time_of_orphans_counts(tmp_path: Path) -> None:
    busy = "import time\nwhile time.process_time() < 0.2: pass"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {busy!r}])"
    status, result = timed(tmp_path / "orphan.json", sys.executable, "-c", code)
    assert status == 0 and result["left"] == []
    assert 0.2 <= float(str(result["cpu_s"])) < 10


def test_a_process_that_is_about_to_run_its_program_has_not_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no command line yet, as one that has ended has none any more."""
    monkeypatch.setattr(timed_script, "_command_line", lambda _: "")
    process = subprocess.Popen(["sleep", "600"])
    try:
        assert process.pid in timed_script.children()
    finally:
        process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process.pid not in timed_script.children()
    process.wait()


def test_a_status_is_handed_on(tmp_path: Path) -> None:
    assert timed(tmp_path / "a.json", sys.executable, "-c", "raise SystemExit(3)")[0] == 3
    assert timed(tmp_path / "b.json", "kill", "-0", "0")[0] == 0


def test_an_interruption_reaches_a_command_of_a_background_job(tmp_path: Path) -> None:
    """A shell starts such jobs with SIGINT ignored."""
    began = tmp_path / "began"
    code = f"import pathlib, time; pathlib.Path({str(began)!r}).touch(); time.sleep(600)"
    out = tmp_path / "background.json"
    command = [sys.executable, "scripts/timed.py", "--out", str(out), "--", sys.executable]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen([*command, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL)
    finally:
        signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 60
    while not began.exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) and json.loads(out.read_text())["status"] != 0


def test_a_line_that_is_being_written_is_read_later(tmp_path: Path) -> None:
    found, path = Records(tmp_path), tmp_path / "1.jsonl"
    path.write_text(
        '{"collected": 2, "waiting": ["x@group-a", "x"]}\n{"began": "tests/unit/a.py::b"}\n'
    )
    with path.open("a") as lines:
        lines.write('{"ended": "tests/unit/a.')
    assert found.refresh() == []
    assert (found.collected, list(found.running.values())) == (2, ["tests/unit/a.py::b"])
    assert found.waiting == {"x"}
    rest = 'py::b", "outcome": "passed", "wall_s": 1.5, "cpu_s": 0.5}\n'
    with path.open("a") as lines:
        lines.write(rest)
    assert found.refresh() == [Ended("tests/unit/a.py::b", "passed", 1.5, 0.5)]
    assert found.refresh() == [] and not found.running


def test_tables_have_a_line_for_each_kind_the_most_expensive_first() -> None:
    ended = [
        Ended("tests/unit/a.py::b", "passed", 1.0, 1.0),
        Ended("tests/cluster/c.py::d", "passed", 30.0, 12.0),
        Ended("tests/unit/a.py::e", "passed", 2.0, 1.0),
    ]
    assert records.kinds_table(ended) == [
        "kind     tests  test seconds  processor seconds",
        "cluster      1            30                 12",
        "unit         2             3                  2",
    ]
    assert records.slowest_table(ended)[1].split() == ["tests/cluster/c.py::d", "30.0", "12.0"]


def test_the_last_line_adds_up() -> None:
    outcomes = {"passed": 3, "xfailed": 2, "failed": 1, "skipped": 4}
    assert records.closing_line(outcomes) == "5 passed, 1 failed, 4 skipped"
    assert records.closing_line({"passed": 1}) == "1 passed, 0 failed"


def test_a_lane_that_breaks_off_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    monkeypatch.setattr(run, "STEPS", tmp_path)
    lane = run.Lane("broken", ["--no-such-option"])
    started = time.monotonic()
    run.follow([lane])
    assert time.monotonic() - started < 60
    assert run.report([lane], ["tests/spark: no Java"]) == 1
    shown = capsys.readouterr().out
    assert "no-such-option" in shown
    assert shown.splitlines()[-3:-1] == [
        "== left out (`make test-all` takes all)",
        "tests/spark: no Java",
    ]
    assert shown.endswith("\n0 passed, 1 failed\n")


def test_a_lane_starts_when_the_one_before_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "FOLDER", tmp_path / "run")
    (tmp_path / "run").mkdir()
    sources = {
        "before": "def test_it(): pass",
        "last": "def test_it(): LAST.touch()",
        "beside": "import time\ndef test_it():\n    while not LAST.exists(): time.sleep(0.1)",
    }
    paths = {name: tmp_path / f"test_{name}.py" for name in sources}
    for name, source in sources.items():
        last = f"from pathlib import Path\nLAST = Path({str(tmp_path / 'last')!r})\n"
        paths[name].write_text(f"{last}{source}\n")
    beside, before = (run.Lane(name, [str(paths[name])]) for name in ("beside", "before"))
    run.follow([run.Lane("last", [str(paths["last"])], behind=before), beside, before])
    said = [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()]
    turns = [line.split(";")[0] for line in said if "starts;" in line or "ended:" in line]
    ended = "has ended: 1 passed, 0 failed"
    assert turns[:3] == ["beside starts", "before starts", f"before {ended}"]
    assert turns[3] == "last starts"
    assert set(turns[4:]) == {f"last {ended}", f"beside {ended}"}


def test_every_folder_of_tests_is_in_a_lane() -> None:
    folders = {
        path.parent.relative_to(ROOT / "tests").parts for path in ROOT.glob("tests/**/test_*.py")
    }
    first = {parts[0] for parts in folders if parts}
    assert first - {"tidy"} == {*run.COMPUTING, *run.WAITING, *run.ELSEWHERE}
