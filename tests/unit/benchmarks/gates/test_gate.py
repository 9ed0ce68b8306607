"""Gates as data: ratios within a turn, which turns count, what a group measures."""

import pytest

from benchmarks.gates.catalogue import GROUPS, choose
from benchmarks.gates.gate import Gate, Group, Measurement, Outcome, Turn, shown
from benchmarks.harness.cases import Case


def turn(ours: float, theirs: float, *shares: float) -> Turn:
    first, second = shares or (0.0, 0.0)
    return {
        "ours": Outcome({"records_s": ours}, first),
        "theirs": Outcome({"records_s": theirs}, second),
    }


GATE = Gate("g", "about", "ours", over="theirs")


def test_a_gate_divides_figures_of_one_turn() -> None:
    assert GATE.value(turn(30.0, 10.0)) == 3.0
    assert GATE.values([turn(30.0, 10.0), turn(10.0, 20.0)], 2) == [3.0, 0.5]


def test_where_small_is_good_the_ratio_is_turned_over() -> None:
    gate = Gate("g", "about", "ours", over="theirs", is_small_good=True)
    assert gate.value(turn(2.0, 5.0)) == 2.5


def test_figures_may_have_different_names() -> None:
    gate = Gate("g", "about", "ours", "mb_s", "limit", "fresh_mb_s")
    found = {"ours": Outcome({"mb_s": 30.0}), "limit": Outcome({"fresh_mb_s": 60.0})}
    assert gate.value(found) == 0.5
    assert gate.is_over_limit and not GATE.is_over_limit


@pytest.mark.parametrize(
    "found",
    [
        {"ours": Outcome({"records_s": 1.0})},
        {"ours": Outcome({"records_s": 1.0}), "theirs": Outcome({"p50_ms": 1.0})},
        {"ours": Outcome({"records_s": 1.0}), "theirs": Outcome({"records_s": 0.0})},
        {"ours": Outcome({"records_s": 0.0}), "theirs": Outcome({"records_s": 1.0})},
        {"ours": Outcome({}), "theirs": Outcome({"records_s": 1.0})},
    ],
)
def test_there_is_no_value_without_both_figures(found: Turn) -> None:
    assert GATE.value(found) is None
    assert GATE.values([found], 1) == []


def test_the_least_disturbed_turns_count_in_their_order() -> None:
    run = [
        turn(1.0, 1.0, 0.1, 0.6),
        turn(2.0, 1.0, 0.5, 0.5),
        turn(3.0, 1.0, 0.2, 0.4),
        turn(4.0, 1.0, 0.3, 0.3),
    ]
    assert GATE.values(run, 2) == [2.0, 4.0]
    assert GATE.values(run, 9) == [1.0, 2.0, 3.0, 4.0]
    assert GATE.others_share([run], 2) == pytest.approx(0.4)
    assert GATE.others_share([], 2) == 0.0


def test_processor_time_is_not_disturbed_by_others() -> None:
    gate = Gate("g", "about", "ours", "cpu_s_per_gb", "theirs")
    assert gate.disturbance(turn(1.0, 1.0, 0.0, 0.9)) == 0.0
    assert GATE.disturbance(turn(1.0, 1.0, 0.0, 0.9)) == 0.9


def test_the_base_is_measured_by_the_same_case() -> None:
    case = Case("produce", rf=1)
    group = Group({"ours": Measurement("icecore", case)}, ()).beside_base(
        Gate("rf1", "about", "ours")
    )
    (gate,) = group.gates
    assert (gate.name, gate.over, gate.is_over_base) == ("base_rf1", "base_ours", True)
    assert group.measurements["base_ours"] == Measurement("icecore", case, is_base=True)


def test_every_gate_needs_what_its_group_measures() -> None:
    names = [gate.name for group in GROUPS for gate in group.gates]
    assert len(names) == len(set(names))
    for group in GROUPS:
        assert {each for gate in group.gates for each in gate.needs} == group.measurements.keys()


def test_what_binds_is_a_ratio_and_what_is_absolute_is_shown() -> None:
    """A ratio divides two measurements, or is one of its own measurement (raw reads)."""
    own = {"cold_scan", "cold_scan_rows"}
    for gate in (gate for group in GROUPS for gate in group.gates):
        assert gate.is_ratio == (bool(gate.over) or gate.name in own), gate.name
    assert not shown("s", "about", "ours", "p50_ms", "ms").is_ratio


def test_only_what_the_chosen_gates_need_is_measured() -> None:
    (group,) = choose(["rf3_limit"])
    assert list(group.measurements) == ["limit", "icecore"]
    (group,) = choose(["base_rf3"])
    assert list(group.measurements) == ["icecore", "base_icecore"]
    assert choose([]) == list(GROUPS)
    with pytest.raises(ValueError, match="no gate nonsense; there are rf1_limit"):
        choose(["nonsense"])
