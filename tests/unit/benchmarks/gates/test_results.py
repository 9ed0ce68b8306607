"""Results: lines, exit status, the file, which bands are written, and arguments that are wrong."""

from pathlib import Path

import pytest

from benchmarks.gates import __main__ as command
from benchmarks.gates import bands
from benchmarks.gates.bands import Band
from benchmarks.gates.catalogue import choose
from benchmarks.gates.gate import Outcome, Run
from benchmarks.gates.results import Results, append, updated
from benchmarks.harness import report

MACHINE = "a processor, 2 cores"
(GROUP,) = choose(["rf3_limit", "rf3_mb_s", "base_rf3"])


def runs(ours: float, share: float = 0.0) -> list[Run]:
    turn = {
        "limit": Outcome({"fresh_mb_s": 400.0}, share),
        "icecore": Outcome({"mb_s": ours, "records_s": ours}, share),
        "base_icecore": Outcome({"mb_s": 100.0, "records_s": 100.0}, share),
    }
    return [[turn, turn], [turn, turn]]


def results(low: float, ours: float = 200.0, share: float = 0.0) -> Results:
    band = Band(low, 0.6, 5, (low,) * 5, 0.0, "2026-01-01", "abc")
    found = Results({MACHINE: {"rf3_limit": band}}, MACHINE)
    found.take(GROUP, runs(ours, share))
    return found


def test_each_gate_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    results(0.4)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("gate: rf3_limit value=0.5 interval=0.5..0.5 band=0.4..0.6")
    assert [line.split()[-1] for line in said] == ["ok", "shown", "shown"]


def test_the_status_is_that_of_the_worst_gate() -> None:
    assert results(0.4).status() == 0
    assert results(0.55).status() == 1
    assert results(0.4, ours=390.0).status() == 0  # above
    assert results(0.55, share=0.7).status() == 2


def test_the_file_has_what_the_values_are_made_of(tmp_path: Path) -> None:
    append(tmp_path / "new" / "out.json", results(0.4), {"runs": 2})
    lines = report.read([tmp_path / "new" / "out.json"])
    kinds = ["machine", "measured", "measured", "measured", "gate", "gate", "gate"]
    assert [line["benchmark"] for line in lines] == kinds
    assert (lines[2]["on"], lines[2]["turns"]) == ("icecore", 4)
    assert lines[3]["on"] == "base"
    assert (lines[4]["name"], lines[4]["value"], lines[4]["by_run"]) == (
        "rf3_limit",
        0.5,
        [0.5] * 2,
    )
    assert (lines[4]["interval"], lines[4]["band"], lines[4]["verdict"]) == (
        [0.5, 0.5],
        [0.4, 0.6],
        "ok",
    )
    assert report.table(lines) == "no results"


def test_bands_are_written_of_ratios_and_of_the_base_only_where_trees_are_the_same() -> None:
    found, left = updated(results(0.4), "abc", is_same_tree=True, date="2026-01-02")
    assert set(found[MACHINE]) == {"rf3_limit", "base_rf3"}
    assert left == []
    assert found[MACHINE]["rf3_limit"].values == (*(0.4,) * 5, 0.5, 0.5)  # of the same commit
    found, left = updated(results(0.4), "def", is_same_tree=False, date="2026-01-02")
    assert set(found[MACHINE]) == {"rf3_limit"}
    assert left == ["base_rf3"]
    assert found[MACHINE]["rf3_limit"].values == (0.5, 0.5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--base", "nonsense"], "the base 'nonsense' names no commit of"),
        (["--only", "nonsense"], "no gate nonsense; there are rf1_limit"),
        (["--runs", "0"], "must be positive"),
        (["--turns", "0"], "must be positive"),
        (["--seconds", "-1"], "must be positive"),
    ],
)
def test_wrong_arguments_are_told_at_once(
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["gates", *words])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_the_names_of_all_gates_can_be_had(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["gates", "--list", "--only", "rf3_limit", "rf1_grpc"])
    assert command.main() == 0
    assert capsys.readouterr().out.split() == ["rf1_grpc", "rf3_limit"]


def test_an_interrupt_writes_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(runner: object, group: object, count: int, found: list[Run]) -> None:
        found += runs(200.0)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "measure_group", interrupted)
    monkeypatch.setattr(bands, "BANDS_FILE", tmp_path / "bands.json")
    words = ["--only", "rf3_limit", "rf1_limit", "--json", str(tmp_path / "out.json")]
    words.append("--update-bands")
    monkeypatch.setattr("sys.argv", ["gates", *words, "--folder", str(tmp_path)])
    assert command.main() == 130
    lines = report.read([tmp_path / "out.json"])
    assert [line["value"] for line in lines if line["benchmark"] == "gate"] == [0.5]
    (written,) = bands.read(tmp_path / "bands.json").values()
    assert written["rf1_limit"].values == (0.5, 0.5)  # the group that came first


def test_nothing_is_written_where_nothing_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "measure_group", lambda *arguments: None)
    monkeypatch.setattr(bands, "BANDS_FILE", tmp_path / "bands.json")
    words = ["--only", "rf3_limit", "--update-bands", "--folder", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["gates", *words])
    assert command.main() == 0
    assert not (tmp_path / "bands.json").exists()
