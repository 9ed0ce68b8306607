"""The page of figures: which lines count, and that what is committed fits what is measured."""

import json
from typing import Any

import pytest

from benchmarks.gates import page
from benchmarks.gates.bands import Band
from benchmarks.gates.catalogue import GROUPS
from benchmarks.gates.page import document, newest


def machine(name: str = "a processor, 2 cores", date: str = "2026-01-01", **more: Any) -> Any:
    about = {"memory_mib": 24_000, "kernel": "6.18.1-x", "python": "3.11.7", "revision": "abc"}
    return {"benchmark": "machine", "name": name, "date": date, "note": "", **about, **more}


def gate(name: str, value: float | None, verdict: str = "ok", unit: str = "ratio") -> Any:
    return {
        "benchmark": "gate",
        "name": name,
        "about": f"about {name}",
        "unit": unit,
        "value": value,
        "interval": [0.4, 0.6],
        "band": [0.35, 0.7],
        "by_run": [value] * 5,
        "others_share": 0.04,
        "verdict": verdict,
    }


def test_the_newest_line_of_the_last_machine_counts() -> None:
    lines = [
        *(machine(date="2026-01-02"), gate("rf3_limit", 0.5), gate("rf1_limit", 0.7)),
        *(machine(date="2026-01-03"), gate("rf3_limit", 0.6), gate("rf1_limit", None, "skipped")),
        *(machine(date="2026-01-01"), gate("rf3_limit", 0.1)),
        *(machine("another", date="2025-01-01"), gate("rf3_grpc", 2.0)),
    ]
    last, found = newest(lines)
    assert last["date"] == "2026-01-03"
    assert {name: line["value"] for name, line in found.items()} == {
        "rf3_limit": 0.6,
        "rf1_limit": 0.7,
    }


def test_the_table_has_a_row_for_each_gate_in_their_order() -> None:
    shown = {**gate("rf1_mb_s", 512.4, "shown", "MB/s"), "band": None}
    lines = [machine(note="beside others"), gate("rf3_limit", 0.5), shown, gate("gone", 1.0)]
    text = document(lines, {})
    names = [each.name for group in GROUPS for each in group.gates]
    rows = [line for line in text.splitlines() if line.startswith("| rf")]
    assert rows == [
        "| rf1_mb_s | about rf1_mb_s | 512 MB/s | 0.4 to 0.6 | – | 5 | 4% |",
        "| rf3_limit | about rf3_limit | 0.5 | 0.4 to 0.6 | 0.35 to 0.7 | 5 | 4% |",
    ]
    assert "Machine: a processor, 2 cores, 23 GiB of memory, Linux 6.18.1, Python 3.11.7" in text
    assert "Beside others." in " ".join(text.split())
    assert f"\n{len(names) - 2} of {len(names)} gates were not measured on this machine" in text
    assert "gone" not in text and "@" not in text


def test_a_row_shows_the_band_in_force() -> None:
    """The runs that make a band are written before there is one."""
    unbound = {**gate("rf3_limit", 0.5, "shown"), "band": None}
    band = Band(0.3, 0.8, 5, (0.5,) * 5, 0.01, "2026-01-01", "abc")
    for name, shown in (("a processor, 2 cores", "0.3 to 0.8"), ("another", "–")):
        text = document([machine(), unbound], {name: {"rf3_limit": band}})
        assert f"| rf3_limit | about rf3_limit | 0.5 | 0.4 to 0.6 | {shown} | 5 | 4% |" in text


def test_there_is_no_page_without_results() -> None:
    with pytest.raises(ValueError, match="no results; `make bench-gates OUT=FILE` writes some"):
        document([gate("rf3_limit", 0.5)], {})


KINDS = ("machine", "measured", "gate", "scale_metadata", "metadata_changes")
"""Gates have three, docs/operate/etcd.md the others."""


def test_committed_results_are_lines_of_known_kinds() -> None:
    folder = page.PAGE.parents[1] / "results"
    files = sorted(folder.glob("*.jsonl"))
    assert files
    for file in files:
        for line in file.read_text().splitlines():
            assert json.loads(line)["benchmark"] in KINDS
