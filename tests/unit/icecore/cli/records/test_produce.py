"""``icecore produce``: what is said of what was acknowledged, going on, and the round trip."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from icecore.cli.records.acknowledged import Acknowledged
from icecore.client.types import RecordMetadata
from icecore.errors import NotEnoughReplicasError, ReadOnlyError
from tests.support.cli_cluster import Cli, serving
from tests.support.fake_cluster import FakeCluster, Fate

INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make background jobs ignore it
from icecore.cli.app import main
main()
"""
"""No preexec_fn: between fork and exec it would run gRPC's handlers of this process."""


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with serving("t", 2, []) as cluster:
        yield cluster


@pytest.fixture
def cli(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(cluster.bootstrap, capsys)


def test_a_bad_line_says_what_is_in_and_where_to_go_on(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "in.ndjson"
    path.write_text('{"a": 1}\n\n{"a": 2}\nnope\n{"a": 3}\n')
    said = json.loads(cli("produce", "t", "-f", "ndjson", str(path), status=1))
    assert said["schema"] == 1
    assert (said["records"], said["through_line"], said["behind"]) == (2, 3, 0)
    assert "line 4: not valid JSON" in said["error"]
    assert f"2 records are acknowledged, up to line 3 of {path}" in cli.err
    assert f"go on with --from-line 4 of {path}" in cli.err
    path.write_text('{"a": 1}\n\n{"a": 2}\n{"a": 2.5}\n{"a": 3}\n')
    said = json.loads(cli("produce", "t", "-f", "ndjson", str(path), "--from-line", "4"))
    assert (said["records"], said["through_line"], said["error"]) == (2, 5, "")
    values = [json.loads(each)["a"] for each in cli.values("fetch", "t")]
    assert sorted(values) == [1, 2, 2.5, 3]


def test_from_line_is_of_the_first_file(cli: Cli, tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_text("a\nb\nc")
    second.write_text("d\ne\n")
    cli("produce", "t", str(first), str(second), "--from-line", "3")
    assert sorted(cli.values("fetch", "t")) == ["c", "d", "e"]
    assert json.loads(cli("produce", "t", str(first), "--from-line", "4"))["records"] == 0
    cli("produce", "t", str(first), str(second), "--from-line", "5", status=2)
    assert f"{first} has 3 lines: --from-line 5 is beyond its end; nothing was sent" in cli.err
    assert len(cli.values("fetch", "t")) == 3
    cli("produce", "t", str(first), "--from-line", "0", status=2)


def test_a_separator_may_be_an_escape(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "tabs"
    path.write_text("k\tv\n")
    for separator in (r"\t", r"\x09", "\t"):
        cli("produce", "t", "-k", separator, str(path))
    assert cli("fetch", "t", "-f", r"%k=%v\n").split() == ["k=v"] * 3
    cli("produce", "t", "-k", r"\q", str(path), status=2)
    assert r"\q is no escape; there are \n" in cli.err


def test_what_cannot_be_read_is_named(cli: Cli, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        cli("produce", "t", str(path), status=2)
        assert str(path) in cli.err


def test_offsets_in_the_order_of_lines(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_text("a=1\nb=2\n\na=3\n")
    out = cli("produce", "t", str(path), "-k", "=", "--offsets")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["line"] for row in rows] == [1, 2, 4]
    where = {(row["partition"], row["offset"]) for row in rows}
    records = [json.loads(line) for line in cli("fetch", "t").splitlines()]
    assert {(each["partition"], each["offset"]) for each in records} == where
    assert "3 records in t" in cli.err or cli.err  # the summary is a note then


def test_round_trip_of_records(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "in.ndjson"
    rows = [{"k": f"k{i}", "h": {"x": str(i)}, "t": 1_700_000_000 + i} for i in range(9)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = ("--key-field", "k", "--headers-field", "h", "--time-field", "t", "--time-unit", "s")
    cli("produce", "t", "-f", "ndjson", str(path), *fields)
    first = cli("fetch", "t", "--format", "records")
    copy = tmp_path / "copy"
    copy.write_text(first)
    cli("produce", "t", "-f", "records", "--same-partition", str(copy))
    found = [json.loads(line) for line in cli("fetch", "t").splitlines()]
    kept = ("partition", "key", "value", "tags", "headers", "timestamp")

    def shape(rows: list[dict[str, Any]]) -> list[str]:
        return sorted(str([row[name] for name in kept]) for row in rows)

    once = [json.loads(line) for line in first.splitlines()]
    assert once[0]["timestamp"].startswith("2023-11-14T")
    assert shape(found) == shape(once * 2)


@pytest.mark.parametrize(
    "words",
    [
        ("--key-field", "k"),
        ("-f", "records", "--key-field", "k"),
        ("-f", "records", "--headers-field", "h"),
        ("-f", "ndjson", "-k", "="),
        ("-f", "records", "-k", "="),
        ("--same-partition",),
        ("-f", "records", "--same-partition", "--partition", "1"),
    ],
)
def test_options_that_do_not_go_together(cli: Cli, words: tuple[str, ...]) -> None:
    cli("produce", "t", *words, status=2)


def test_times_that_are_probably_seconds(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_text('{"t": 1700000000}\n' * 2)
    cli("produce", "t", "-f", "ndjson", "--time-field", "t", str(path))
    assert cli.err.count("is --time-unit right?") == 1


def test_who_waits_is_told_why(
    cli: Cli, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icecore.cli.records.produce._SILENCE_S", 0.3)
    full = ReadOnlyError("the disk of node 1 is full")
    cluster.on_produce = lambda node, partition, header: Fate(full, append=False)
    path = tmp_path / "in"
    path.write_text("a\n")
    cli("produce", "t", str(path), "--delivery-timeout", "4", status=1)
    waiting = [line for line in cli.err.splitlines() if line.startswith("waiting: ")]
    assert waiting[0].startswith("waiting: 1 record not acknowledged for ")
    why = ": the disk of node 1 is full); `icecore cluster health` says"
    assert any(why in line for line in waiting)  # once the first attempt was answered
    assert "no record is acknowledged; go on with --from-line 1" in cli.err


@pytest.mark.parametrize("options", [["--offsets"], ["--quiet"]])
def test_an_output_on_a_full_disk_says_what_is_in(
    cluster: FakeCluster, tmp_path: Path, options: list[str]
) -> None:
    """All is acknowledged before the first word of it is printed."""
    path = tmp_path / "in"
    path.write_text("a\nb\nc\n")
    command = ["-b", cluster.bootstrap, "produce", "t", str(path), *options]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "icecore.cli", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == (
        "icecore: the output can't be written: No space left on device; 3 records are "
        f"acknowledged, up to line 3 of {path}; go on with --from-line 4 of {path}\n"
    )


def test_an_interruption_says_what_is_in(cluster: FakeCluster) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "-b", cluster.bootstrap, "produce", "t", "--offsets"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write("a\nb\n")
        process.stdin.flush()
        assert [json.loads(process.stdout.readline())["line"] for _ in range(2)] == [1, 2]
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert error == (
        "icecore: interrupted; 2 records are acknowledged, up to line 2 of stdin; "
        "go on with --from-line 3 of stdin\n"
    )


# --- the ledger -----------------------------------------------------------------------------------


class Handle:
    """As of a record that was sent."""

    def __init__(self, outcome: object = None) -> None:
        self.outcome = outcome

    @property
    def is_done(self) -> bool:
        return self.outcome is not None

    def __await__(self) -> Any:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome
        yield


DONE = RecordMetadata("t", 0, 1, 2, 3)
REFUSED = NotEnoughReplicasError("too few")


async def test_lines_count_as_far_as_all_are_acknowledged() -> None:
    seen: list[int] = []
    ledger = Acknowledged(lambda source, line, found: seen.append(line))
    handles = [Handle(DONE), Handle(), Handle(DONE), Handle(REFUSED), Handle(DONE)]
    for line, handle in enumerate(handles, 1):
        ledger.sent("in", line, handle)  # type: ignore[arg-type]
    await ledger.settle()
    assert (ledger.records, ledger.line, ledger.waiting) == (1, 1, 4)
    handles[1].outcome = DONE
    await ledger.settle()
    assert (ledger.records, ledger.line, ledger.failure) == (3, 3, REFUSED)
    assert (seen, ledger.behind, ledger.waiting) == ([1, 2, 3], 1, 0)
    assert ledger.sentence("in", 1) == (
        "3 records are acknowledged, up to line 3 of in, and 1 behind it; "
        "go on with --from-line 4 of in"
    )


async def test_what_has_no_outcome_is_not_counted() -> None:
    ledger = Acknowledged()
    for line, handle in enumerate([Handle(), Handle(DONE)], 5):
        ledger.sent("in", line, handle)  # type: ignore[arg-type]
    await ledger.close()
    assert (ledger.records, ledger.behind, ledger.waiting) == (0, 1, 0)
    assert ledger.sentence("in", 5) == (
        "no record is acknowledged, and 1 behind it; go on with --from-line 5 of in"
    )
