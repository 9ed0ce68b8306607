"""The arithmetic of the benchmarks: percentiles, open loops, ratios, table."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from benchmarks import core_step, idle, memory, run
from benchmarks.cluster import Icecore, Missing, NotStarted, PeerFailed, System
from benchmarks.gates.base import Tree
from benchmarks.harness import figures, others, report, runner, systems
from benchmarks.harness.cases import IN_FLIGHT_BYTES, PRESETS, Case
from benchmarks.harness.systems import Systems
from benchmarks.harness.warm_memory import warm_memory
from benchmarks.harness.workload import Job

# --- percentiles and open loops -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [(1, 0.5, 1), (2, 0.5, 1), (3, 0.5, 2), (100, 0.99, 99), (1000, 0.999, 999), (10, 0.999, 10)],
)
def test_a_quantile_is_the_smallest_value_that_the_share_does_not_exceed(
    count: int, share: float, expected: int
) -> None:
    assert figures.quantile(range(1, count + 1), share) == expected


def test_there_is_no_quantile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        figures.quantile([], 0.5)
    assert figures.latency_ms([]) == {}


def test_latencies_are_reported_in_ms() -> None:
    found = figures.latency_ms([0.003, 0.001, 0.002])
    assert found == {"p50_ms": 2, "p99_ms": 3, "p999_ms": 3, "max_ms": 3, "samples": 3}


def test_a_stall_counts_for_every_record_that_was_due_meanwhile() -> None:
    """100 records/s; the system stands still from 1 s to 2 s, all else takes no time."""
    schedule = figures.Schedule(0.0, rate_s=100, samples_s=100)
    latencies_s = []
    now_s = 0.0
    while now_s < 3.0:
        while schedule.wait_s(now_s) <= 0:
            acked_s = 2.0 if 1.0 <= now_s < 2.0 else now_s
            due_s = schedule.take()
            assert due_s is not None
            latencies_s.append(acked_s - due_s)
            now_s = acked_s
        now_s += schedule.wait_s(now_s) + 1e-9
    ordered = sorted(latencies_s)
    assert len(ordered) == pytest.approx(300, abs=2)
    assert sum(each > 0.01 for each in ordered) == pytest.approx(100, abs=2)
    assert figures.quantile(ordered, 0.999) == pytest.approx(1.0, abs=0.02)
    assert figures.quantile(ordered, 0.5) < 0.001


def test_only_a_share_of_the_records_is_noted_at_high_rates() -> None:
    schedule = figures.Schedule(10.0, rate_s=5_000, samples_s=1_000)
    due = [schedule.take() for _ in range(10)]
    assert due == [10.0, None, None, None, None, 10.001, None, None, None, None]
    assert schedule.wait_s(10.0) == pytest.approx(0.002)


# --- rates and ratios -----------------------------------------------------------------------------


def test_rates_count_values_only() -> None:
    assert figures.rates(4_000, 2.0, 1000) == {"records_s": 2_000, "mb_s": 2.0}


def test_the_median_takes_what_all_runs_have() -> None:
    runs = [{"a": 1.0, "b": 1.0}, {"a": 5.0}, {"a": 2.0, "b": 1.0}]
    assert figures.median_of(runs) == {"a": 2.0}


BOUNDS = {
    "fresh_mb_s": 200.0,
    "recycled_mb_s": 250.0,
    "hop_mb_s": 400.0,
    "sync_ms": 1.0,
    "hop_ms": 0.5,
}


@pytest.mark.parametrize(
    ("case", "measured", "expected"),
    [
        (
            Case("produce"),
            {"mb_s": 100.0},
            {"ratio_to_fresh": 0.5, "ratio_to_recycled": 0.4, "ratio_to_hop": 0.25},
        ),
        (Case("fetch"), {"mb_s": 100.0}, {"ratio_to_hop": 0.25}),
        (Case("single", rf=1), {"mb_s": 0.1, "p50_ms": 6.0}, {"ratio_to_least_ms": 4.0}),
        (Case("single", rf=3), {"mb_s": 0.1, "p50_ms": 6.0}, {"ratio_to_least_ms": 3.0}),
    ],
)
def test_ratios_to_what_disk_and_transport_allow(
    case: Case, measured: dict[str, float], expected: dict[str, float]
) -> None:
    assert figures.bound_ratios(case, measured, BOUNDS) == expected


def outcome(**figures: float) -> dict[str, Any]:
    return {"figures": figures, "processes": {}, "others_share": 0.01}


def test_results_compare_systems_within_each_run() -> None:
    by_run = [
        {
            "icecore": outcome(records_s=ours, mb_s=1.0),
            "kafka": outcome(records_s=theirs, mb_s=1.0),
        }
        for ours, theirs in ((10.0, 10.0), (40.0, 20.0), (90.0, 30.0))
    ]
    ours, theirs = run.results(Case("produce"), by_run, BOUNDS)
    assert (ours["records_s"], ours["records_s_to_kafka"]) == (40.0, 2.0)
    assert theirs["records_s_to_icecore"] == 0.5
    assert (theirs["failed_runs"], theirs["others_share"]) == (0, [0.01] * 3)


def test_runs_in_which_a_peer_failed_are_left_out() -> None:
    ours = [outcome(records_s=each, mb_s=1.0) for each in (10.0, 40.0, 90.0)]
    by_run = [
        {"icecore": ours[0]},
        {"icecore": ours[1], "kafka": outcome(records_s=10.0, mb_s=1.0)},
        {"icecore": ours[2]},
    ]
    first, second = run.results(Case("produce"), by_run, BOUNDS)
    assert (first["records_s"], first["records_s_to_kafka"], first["failed_runs"]) == (40.0, 4.0, 0)
    assert (second["system"], second["runs"], second["failed_runs"]) == (
        "kafka",
        [{"records_s": 10.0, "mb_s": 1.0}],
        2,
    )


class Peer:
    """A system that fails as often as it is told."""

    name, warm_s, nodes, bootstrap = "kafka", 0.0, 3, "127.0.0.1:1"
    pids: ClassVar[dict[str, int]] = {}
    starts_that_fail = topics_that_fail = started = stopped = 0

    def __init__(self, folder: Path) -> None:
        self.topics: list[str] = []

    def __enter__(self) -> Self:
        Peer.started += 1
        if Peer.started <= Peer.starts_that_fail:
            raise NotStarted("its port is taken")
        return self

    def __exit__(self, *_: object) -> None:
        Peer.stopped += 1

    def lacks(self, case: Case) -> str:
        return ""

    def create_topic(self, topic: str, partitions: int, rf: int, flush: str) -> None:
        if Peer.topics_that_fail:
            Peer.topics_that_fail -= 1
            raise LookupError("no leader")  # of a library that nobody knows

    def delete_topic(self, topic: str) -> None:
        raise LookupError("not now")

    def hold(self) -> bool:
        return True

    def go_on(self) -> None: ...


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> type[Peer]:
    for name in ("starts_that_fail", "topics_that_fail", "started", "stopped"):
        monkeypatch.setattr(Peer, name, 0)
    monkeypatch.setitem(systems.PEERS, "kafka", Peer)
    return Peer


def test_a_peer_that_does_not_start_is_tried_again(tmp_path: Path, peer: type[Peer]) -> None:
    peer.starts_that_fail = 1
    with Systems(tmp_path, lambda system: None) as found:
        assert found.get("kafka", 3).name == "kafka"
        assert peer.started == 2
    peer.starts_that_fail = 9
    with Systems(tmp_path, lambda system: None) as found:
        for _ in range(2):
            with pytest.raises(Missing, match="its port is taken"):
                found.get("kafka", 3)
        assert peer.started == 4


def test_a_peer_that_fails_costs_one_run_and_in_the_end_all(
    tmp_path: Path, peer: type[Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        def __init__(self, job: Job, timeout_s: float, where: Tree) -> None:
            pass

        def result(self) -> dict[str, Any]:
            return outcome(records_s=1.0)

    monkeypatch.setattr(runner, "_Client", Client)
    monkeypatch.setattr(runner, "FREE_BYTES_MIN", 0)
    # What surrounds a run is real, and small.
    monkeypatch.setattr(runner, "warm_memory", lambda length_bytes: warm_memory(1 << 20))
    monkeypatch.setattr(runner, "LIMIT_MIB", 1)
    monkeypatch.setattr(runner, "LIMIT_RUNS", 1)
    monkeypatch.setattr(runner.hop, "SECONDS", 0.05)
    monkeypatch.setattr(runner.hop, "WARM_S", 0.05)
    measuring = runner.Runner(tmp_path, runner.Times())
    case = Case("produce")
    with Systems(tmp_path, lambda system: None) as found:
        measuring._systems, measuring._folder = found, tmp_path
        peer.topics_that_fail = 1
        assert run._one_run(measuring, case, ["kafka"]) == {}
        with measuring.topics():  # the topic can't be deleted, which costs nothing
            again = run._one_run(measuring, case, ["kafka"])
        assert again["kafka"]["figures"] == {"records_s": 1.0}
        assert again["kafka"]["others_share"] >= 0
        assert (peer.started, peer.stopped) == (2, 2)  # anew after each failure
        peer.topics_that_fail = 9
        with pytest.raises(PeerFailed, match="kafka: LookupError: no leader"):
            measuring.run("kafka", case)
        with pytest.raises(Missing, match="that does not fail: it did 3 times"):
            measuring.run("kafka", case)


def test_ours_say_which_settings_they_lack() -> None:
    rocksdb, ours = (Icecore(name, Path("unused"), 1) for name in ("icecore_rocksdb", "icecore"))
    assert rocksdb.lacks(Case("produce", flush="async")) == "flush=async"
    assert rocksdb.lacks(Case("produce")) == ours.lacks(Case("produce", flush="async")) == ""


def test_a_choice_that_fits_nothing_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, said in (
        (["rf=9"], "rf is never 9 in short: it is one of 1, 3"),
        (["kind=produce,rf=3"], "kind is never rf=3 in short: it is one of fetch, produce, single"),
        (["colour=1"], "no field colour"),
        (["kind=single", "spread=keyed", "--preset=peers"], "no case of peers fits kind=single"),
    ):
        monkeypatch.setattr("sys.argv", ["run", "--only", *words])
        with pytest.raises(SystemExit):
            run.main()
        assert said in capsys.readouterr().err


# --- cases ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_names_no_case_twice(preset: str) -> None:
    cases = list(PRESETS[preset]())
    assert len(cases) == len(set(cases)) > 0


def test_bytes_in_flight_do_not_depend_on_partitions() -> None:
    deep = Case("produce", in_flight_bytes=256 << 20)
    assert deep.records_in_flight == 4 * deep.chunk_records == 256 << 10
    assert (deep.label == Case("produce").label, "256 MiB in flight" in deep.label) == (False, True)
    for case in PRESETS["matrix"]():
        in_flight = case.records_in_flight * case.record_bytes
        assert IN_FLIGHT_BYTES - case.record_bytes < in_flight <= IN_FLIGHT_BYTES


def test_cases_are_chosen_by_their_fields() -> None:
    chosen = list(run.choose("matrix", ["kind=produce", "rf=3", "partitions=16,256", "acks=all"]))
    assert {case.partitions for case in chosen} == {16, 256}
    assert {(case.kind, case.rf, case.acks) for case in chosen} == {("produce", 3, "all")}
    with pytest.raises(AttributeError):
        list(run.choose("matrix", ["colour=red"]))


def test_a_job_survives_its_way_to_the_client() -> None:
    job = Job("icecore", "127.0.0.1:1", "t", Case("open", rate_s=5), "open", 1.0, 0.5, {"n": 1})
    assert Job.from_dict(json.loads(json.dumps(job.to_dict()))) == job


def test_an_absent_system_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: None)
    started: list[System] = []
    with Systems(tmp_path, started.append) as systems:
        for _ in range(2):
            with pytest.raises(Missing, match="java, mvn"):
                systems.get("kafka", 3)
    assert not started


# --- others ---------------------------------------------------------------------------------------


def test_who_is_not_ours_is_an_other() -> None:
    """Other processes are found by their ticks, not by shares: on a busy machine shares prove
    nothing."""
    wait = "import sys; sys.stdin.read()"
    leave = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {wait!r}], stdout=subprocess.DEVNULL)\n"
        "print(child.pid)"
    )
    command = [sys.executable, "-c"]
    with (
        subprocess.Popen([*command, wait], stdin=subprocess.PIPE) as child,
        subprocess.Popen(
            [*command, leave], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as parent,
    ):
        assert parent.stdout is not None and parent.stdin is not None
        orphan = int(parent.stdout.readline())
        parent.wait()  # its child outlives it, until its standard input ends
        theirs, _, total = others._read()
        assert orphan in theirs
        assert not theirs.keys() & {child.pid, os.getpid(), 2}
        assert total > 0


def test_others_have_what_they_and_the_host_used_since(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([({7: 10, 8: 5}, 3, 1000), ({7: 30, 9: 10}, 13, 1100)])
    monkeypatch.setattr(others, "_read", lambda: next(seen))
    # 20 of a process that was there, 10 of a new one, 10 that the host took; 8 has ended.
    assert others.Others().share() == 0.4


# --- report ---------------------------------------------------------------------------------------


def test_the_table_leaves_out_what_nobody_has() -> None:
    lines: list[dict[str, object]] = [
        {"benchmark": "machine", "cpu": "x"},
        {"benchmark": "produce", "system": "icecore", "records_s": 1234567, "mb_s": 1.5},
        {"benchmark": "single", "system": "icecore", "p50_ms": 2.25},
    ]
    assert report.table(lines) == (
        "| system | what | records/s | MB/s | p50 ms |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| icecore | produce | 1,234,567 | 1.5 | – |\n"
        "| icecore | single | – | – | 2.25 |"
    )
    assert report.table([]) == "no results"


def test_results_are_read_from_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"benchmark": "machine"}\n\n{"benchmark": "produce"}\n')
    assert [line["benchmark"] for line in report.read([path])] == ["machine", "produce"]


def test_plots_are_written_as_png_and_svg(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    case = Case("produce").settings()
    latency = {"p50_ms": 1.0, "p99_ms": 2.0, "p999_ms": 3.0}
    lines = [
        {
            **case,
            "benchmark": "produce",
            "system": "icecore",
            "partitions": n,
            "records_s": 1000 * n,
        }
        for n in (1, 16)
    ]
    lines.append({**case, "benchmark": "open", "system": "icecore", **latency})
    written = report.plot(lines, tmp_path / "plots")
    assert [path.name for path in written] == [
        *("produce.png", "produce.svg", "latency.png", "latency.svg"),
    ]
    assert all(path.stat().st_size > 1_000 for path in written)


# --- memory ---------------------------------------------------------------------------------------


def test_a_process_is_held_against_its_own_bound() -> None:
    bound = memory.BOUNDS_MIB["node"]
    found = memory.figures_of("node-2", [100.0, 100.0, 120.0, float(bound)])
    assert found["holds"] and found["peak_mib"] == found["bound_mib"] == bound
    assert (found["first_quarter_mib"], found["last_quarter_mib"]) == (100, bound)
    assert not memory.figures_of("node-2", [100.0, bound + 1.0])["holds"]
    with pytest.raises(KeyError):
        memory.figures_of("stranger", [1.0])


def test_what_a_waiting_consumer_costs_is_what_the_busiest_node_does_more() -> None:
    without = {"coordinator": 9.0, "node-1": 10.0, "node-2": 12.0}
    loaded = {"coordinator": 99.0, "node-1": 15.0, "node-2": 16.0, "client-1": 99.0}
    assert idle.us_per_consumer(without, loaded, 500) == 10.0


# --- the core -------------------------------------------------------------------------------------


def test_a_step_of_the_core_has_a_figure_for_each_case() -> None:
    found = core_step.measure(batches=100, rounds=1)  # 100: the last group is not full
    assert set(found) == set(core_step.CHECKS)
    for us_per_batch in found.values():
        assert set(us_per_batch) == {str(group) for group in core_step.GROUPS}
        assert all(us > 0 for us in us_per_batch.values())
