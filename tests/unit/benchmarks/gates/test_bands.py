"""Bands and verdicts: what binds, what a busy machine changes, and the file."""

from pathlib import Path

import pytest

from benchmarks.gates import bands
from benchmarks.gates.bands import Band, added, band_of, find, interval, judge
from benchmarks.gates.catalogue import GROUPS
from benchmarks.gates.gate import Gate, Outcome, Run, Turn

GATE = Gate("g", "about", "ours", over="theirs")
LIMIT_GATE = Gate("g", "about", "ours", over="limit")
TIME_GATE = Gate("g", "about", "ours", "cpu_s_per_gb", "theirs")
BASE_GATE = Gate("base_g", "about", "ours", over="base_ours")


def run_of(*values: float, share: float = 0.0, over: str = "theirs") -> Run:
    turns: list[Turn] = []
    for value in values:
        figures = {"records_s": value, "cpu_s_per_gb": value}
        ones = {"records_s": 1.0, "cpu_s_per_gb": 1.0}
        turns.append({"ours": Outcome(figures, share), over: Outcome(ones, share)})
    return turns


def band(low: float, high: float, runs: int = 5, share: float = 0.0) -> Band:
    return Band(low, high, runs, (low,) * runs, share, "2026-01-01", "abc")


def verdict(gate: Gate, run: Run, of: Band | None) -> str:
    return judge(gate, [run], len(run), of).verdict


def test_a_band_is_twice_as_wide_as_its_runs() -> None:
    found = band_of([1.0, 1.1, 0.9, 1.0, 1.2], 0.2, "2026-01-01", "abc")
    assert (found.low, found.high) == (pytest.approx(0.8), pytest.approx(1.4))
    assert (found.runs, found.values) == (5, (1.0, 1.1, 0.9, 1.0, 1.2))
    assert found.binds(GATE)


def test_a_band_of_equal_runs_is_not_empty() -> None:
    found = band_of([2.0] * 5, 0.0, "2026-01-01", "abc")
    assert (found.low, found.high) == (pytest.approx(1.9), pytest.approx(2.1))
    assert band_of([1.0, 9.0, 9.0], 0.0, "", "").low == 0.0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0], (3.0, 3.0)),
        ([3.0, 1.0, 2.0, 4.0], (1.0, 4.0)),
        (list(range(1, 9)), (1, 8)),
        (list(range(1, 10)), (2, 8)),
        (list(range(1, 21)), (6, 15)),
    ],
)
def test_the_interval_of_the_median_is_found_by_order(
    values: list[float], expected: tuple[float, float]
) -> None:
    """The interval has the second and eighth of nine values, the sixth and fifteenth of twenty.
    Tables of the sign test say so for 95 %."""
    assert interval(values) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.5, 0.6), "red"),
        ((0.5, 0.95), "ok"),
        ((0.9, 1.1), "ok"),
        ((1.0,), "ok"),
        ((1.05, 1.3), "ok"),
        ((1.2, 1.3), "above"),
    ],
)
def test_a_verdict_holds_the_whole_interval_against_the_band(
    values: tuple[float, ...], expected: str
) -> None:
    assert verdict(GATE, run_of(*values), band(0.9, 1.1)) == expected


def test_what_binds_nobody_is_shown() -> None:
    red = run_of(0.1, 0.2)
    assert verdict(GATE, red, None) == "shown"
    assert verdict(GATE, red, band(0.9, 1.1, runs=4)) == "shown"
    assert verdict(GATE, red, band(0.9, 1.1, share=0.6)) == "shown"
    assert verdict(Gate("g", "about", "ours", unit="ms"), red, band(0.9, 1.1)) == "shown"
    assert verdict(GATE, [], band(0.9, 1.1)) == "skipped"


def test_others_widen_the_band_of_a_ratio_to_the_limit_alone() -> None:
    low, busy = band(0.9, 1.1), run_of(0.65, 0.65, share=0.4, over="limit")
    assert verdict(LIMIT_GATE, busy, low) == "ok"
    assert verdict(LIMIT_GATE, run_of(0.65, 0.65, over="limit"), low) == "red"
    assert verdict(LIMIT_GATE, run_of(0.5, 0.5, share=0.4, over="limit"), low) == "red"
    assert verdict(GATE, run_of(0.65, 0.65, share=0.4), low) == "red"
    # A band from a busy machine, and a quiet one now.
    was_busy = band(0.9, 1.1, share=0.4)
    assert verdict(LIMIT_GATE, run_of(1.5, 1.5, over="limit"), was_busy) == "ok"
    assert verdict(LIMIT_GATE, run_of(2.0, 2.0, over="limit"), was_busy) == "above"


def test_nothing_is_said_where_others_have_most_of_the_machine() -> None:
    busy = run_of(0.1, 0.1, share=0.6)
    assert verdict(GATE, busy, band(0.9, 1.1)) == "refused"
    assert verdict(TIME_GATE, busy, band(0.9, 1.1)) == "red"


def test_a_line_says_all_of_it() -> None:
    found = judge(GATE, [run_of(0.5, 0.6), run_of(0.7, 0.8)], 2, band(0.9, 1.1))
    assert found.value == pytest.approx(0.65)
    assert found.by_run == (pytest.approx(0.55), pytest.approx(0.75))
    assert found.line() == (
        "gate: g value=0.65 interval=0.5..0.8 band=0.9..1.1 others=0% unit=ratio red"
    )
    above = judge(GATE, [run_of(1.4, 1.5)], 2, band(0.9, 1.1))
    assert above.line().endswith("unit=ratio above: new floor 1.4")
    few = judge(GATE, [run_of(1.4)], 1, band(0.9, 1.1, runs=2))
    assert "band=0.9..1.1 (runs=2, others=0%)" in few.line()
    assert judge(GATE, [], 2, None).line() == "gate: g value=- unit=ratio skipped"
    speed = Gate("g", "about", "ours", unit="records/s")
    text = judge(speed, [run_of(123456.7)], 1, None).line()
    assert "value=123457 " in text and text.endswith("unit=records/s shown")


# --- the file -------------------------------------------------------------------------------------


def test_bands_survive_the_file(tmp_path: Path) -> None:
    stored = {"b": {"z": band(1.0, 2.0), "a": band(0.5, 0.6)}, "a": {"z": band(3.0, 4.0)}}
    bands.write(stored, tmp_path / "bands.json")
    text = (tmp_path / "bands.json").read_text()
    assert bands.read(tmp_path / "bands.json") == stored
    assert text.index('"a": {\n') < text.index('"b": {\n')
    assert len(text.splitlines()) == 2 + 2 * 2 + 3
    assert bands.read(tmp_path / "absent.json") == {}


def test_a_band_is_that_of_the_machine_but_for_ratios_to_the_base() -> None:
    narrow, wide = band(0.95, 1.05), band(0.8, 1.2)
    stored = {"a": {"g": narrow, "base_g": narrow}, "b": {"base_g": wide}}
    assert find(stored, "a", GATE) is narrow
    assert find(stored, "c", GATE) is None
    assert find(stored, "a", BASE_GATE) is narrow
    assert find(stored, "c", BASE_GATE) is wide
    assert find({}, "c", BASE_GATE) is None


def test_runs_of_one_commit_add_up_to_a_band() -> None:
    found = judge(GATE, [run_of(1.0, share=0.2), run_of(1.2, share=0.2)], 1, None)
    first = added(None, found, "2026-01-01", "abc")
    assert (first.values, first.runs) == ((1.0, 1.2), 2)
    again = judge(GATE, [run_of(1.1, share=0.5)], 1, None)
    both = added(first, again, "2026-01-02", "abc")
    assert (both.values, both.date) == ((1.0, 1.2, 1.1), "2026-01-02")
    assert both.others_share == pytest.approx(0.3)
    assert added(first, again, "2026-01-02", "def").values == (1.1,)


def test_the_stored_bands_are_of_gates_that_there_are() -> None:
    gates = {gate.name: gate for group in GROUPS for gate in group.gates}
    for machine, found in bands.read().items():
        assert "cores" in machine
        assert not found.keys() - gates.keys()
        for name, each in found.items():
            assert gates[name].is_ratio
            assert each.runs == len(each.values) and 0 <= each.low <= each.high
