"""Each item of a rotated list has its turn: nothing is left out for ever, or in silence."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support import rotation, rotation_marks
from tests.support.rotation import Rotation, read
from tests.tidy.tree import ROOT

pytest_plugins = ["pytester"]


@pytest.mark.parametrize("whole", [1, 2, 7, 24, 60])
@pytest.mark.parametrize("count", [1, 3, 6, 100])
def test_each_item_has_its_turn_and_no_turn_is_too_large(whole: int, count: int) -> None:
    items = list(range(whole))
    turns = -(-whole // count)
    for first in (0, 17):
        parts = [Rotation(first + number).part(items, count) for number in range(turns)]
        assert sorted(item for part in parts for item in part) == items
        assert all(0 < len(part) <= count for part in parts)
    assert Rotation(5, is_all=True).part(items, count) == items


def test_new_seeds_never_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    for number in range(1, 8):
        monkeypatch.setattr(rotation, "current", lambda number=number: Rotation(number))
        seen += rotation.fresh_seeds("a test", 4, 12)
    assert seen == sorted(set(seen)) and len(seen) == 7 * 4
    monkeypatch.setattr(rotation, "current", lambda: Rotation(7, is_all=True))
    assert {*range(1, 13), *seen[-4:]} == {*rotation.fresh_seeds("a test", 4, 12)}


def test_some_run_always_and_the_report_counts_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "current", lambda: Rotation(1))
    monkeypatch.setattr(rotation, "_taken", {})
    assert rotation.take("letters", "abcdef", 2, always="c") == ["c", "b", "f"]
    assert str(rotation._taken["letters"]) == "letters: 3 of 6: c, b, f"


def test_a_run_tries_a_third_of_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "current", lambda: Rotation(1))
    assert rotation.examples(100) == 34
    monkeypatch.setattr(rotation, "current", lambda: Rotation(1, is_all=True))
    assert rotation.examples(100) == 100


def test_a_test_that_takes_turns_has_one() -> None:
    for turn in (None, 0, 1, 2, 5):
        due = [rotation_marks.turn_of("tests/test_a.py::test_b", 3, turn)] * 3
        assert sum(Rotation(number).has_turn(3, each) for number, each in enumerate(due)) == 1
    assert Rotation(1, is_all=True).has_turn(3, 2)


@pytest.mark.parametrize("given", ["seven", "-1", "1.5", "1 2", "²"])
def test_a_bad_number_is_refused(given: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ICECORE_ROTATION .* write a whole number from 0 on"):
        read(given)
    file = tmp_path / "rotation.txt"
    file.write_text(f"# a comment\n{given}\n")
    with pytest.raises(ValueError, match=r"rotation.txt holds '.*', which is no rotation number"):
        read(None, file)


def test_the_variable_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "rotation.txt"
    file.write_text("# a comment\n41\n")
    assert read(None, file) == read("", file) == Rotation(41)
    assert read("17", file) == Rotation(17)
    assert read("all", file) == Rotation(41, is_all=True)


def run(*arguments: str, given: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, rotation.VARIABLE: given}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )


def test_the_report_has_a_line_for_each_list_and_an_error_is_one_line() -> None:
    done = run("tests.support.rotation", given="17")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "rotation: 17"
    for name in ("simulation: regressions", "simulation: mutants", "model: mutants"):
        assert sum(line.startswith(f"{name}: ") for line in lines) == 1, name
    assert "hypothesis examples: one in 3, from seed 17" in lines
    assert lines[-1].startswith("whole tests in turns: ")
    done = run("tests.support.rotation", given="seven")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "write a whole number from 0 on" in done.stderr


MARKED = """
import pytest

@pytest.mark.every(3, turn=0)
def test_first(): pass

@pytest.mark.every(3, turn=1)
@pytest.mark.parametrize("number", [1, 2])
def test_second(number): pass

@pytest.mark.every(3, turn=2)
class TestThird:
    def test_it(self): pass
    @pytest.mark.every(1)
    def test_always(self): pass

def test_unmarked(): pass
"""
CONFTEST = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.conftest import (
    pytest_collection_modifyitems,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)
"""


def test_tests_that_wait_are_named_at_the_end(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=MARKED)
    plain = ("-p", "no:hypothesispytest", "-o", "markers=every")
    monkeypatch.setenv(rotation.VARIABLE, "4")
    done = pytester.runpytest_subprocess(*plain, "-n", "2")
    done.assert_outcomes(passed=4)
    done.stdout.fnmatch_lines(
        [
            "rotation 4: *ICECORE_ROTATION=4 repeats it*",
            "2 tests waited for their turn:",
            "  test_it.py::TestThird::test_it",
            "  test_it.py::test_first",
        ]
    )
    monkeypatch.setenv(rotation.VARIABLE, "all")
    done = pytester.runpytest_subprocess(*plain)
    done.assert_outcomes(passed=6)
    done.stdout.no_fnmatch_line("*waited*")


class Item:
    """A test with a mark."""

    def __init__(self, nodeid: str, *mark: int) -> None:
        self.nodeid = nodeid
        self._mark = SimpleNamespace(args=mark, kwargs={}) if mark else None

    def get_closest_marker(self, name: str) -> Any:
        return self._mark if name == "every" else None


@pytest.mark.parametrize(
    ("arguments", "ran"),
    [(["tests"], ["a.py::b"]), (["tests/c.py::d"], ["a.py::b", "c.py::d[1]"])],
)
def test_a_test_that_is_asked_for_by_name_runs_in_any_case(
    arguments: list[str], ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "current", lambda: Rotation(1))
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    config = SimpleNamespace(args=arguments, stash=pytest.Stash(), hook=hook)
    items = [Item("a.py::b"), Item("c.py::d[1]", 2, 0)]
    rotation_marks.leave_out(cast(Any, config), cast(Any, items))
    assert [item.nodeid for item in items] == ran


def test_marks_are_found_in_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "TESTS", tmp_path)
    file = tmp_path / "test_it.py"
    file.write_text(MARKED)
    name = f"{tmp_path.name}/test_it.py"
    assert list(rotation_marks.marked_tests(file)) == [
        (f"{name}::test_first", 3, 0),
        (f"{name}::test_second", 3, 1),
        (f"{name}::TestThird::test_it", 3, 2),
        (f"{name}::TestThird::test_always", 1, None),
    ]
    file.write_text("import pytest\npytestmark = [pytest.mark.every(2)]\ndef test_a(): pass\n")
    assert list(rotation_marks.marked_tests(file)) == [(f"{name}::test_a", 2, None)]
    with pytest.raises(ValueError, match="give a whole number from 1 on"):
        rotation_marks.bounds(0)
