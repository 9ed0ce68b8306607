"""The command line without a cluster: records as text, times, plain messages, usage errors."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from icecore.cli.app import _hoist_globals, main
from icecore.cli.output import Output, counted, plain, size
from icecore.cli.records.record_lines import (
    RECORDS,
    LineFormat,
    TimeUnit,
    format_record,
    parse_lines,
)
from icecore.cli.records.times import duration, iso_time, parse_position, parse_time_ms
from icecore.codec.batch import MAX_TIMESTAMP_MS
from icecore.codec.record import Record
from icecore.dev import LocalCluster
from icecore.errors import ConfigurationError, InvalidRequestError
from icecore.model import Segment, SegmentState

PARTS = LineFormat(is_ndjson=True, value_field="value", has_partition=True)
CLI = [sys.executable, "-m", "icecore.cli"]
nullable_bytes = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)


def run(arguments: Sequence[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


# --- records as text ----------------------------------------------------------------------


@given(
    key=nullable_bytes,
    value=nullable_bytes,
    timestamp_ms=st.integers(-(10**12), MAX_TIMESTAMP_MS),
    tags=st.lists(st.text(min_size=1, max_size=5), max_size=3),
    headers=st.lists(st.tuples(st.text(max_size=5), nullable_bytes), max_size=2),
)
def test_what_fetch_prints_produce_reads(
    key: bytes | None,
    value: bytes | None,
    timestamp_ms: int,
    tags: list[str],
    headers: list[tuple[str, bytes | None]],
) -> None:
    record = Record(value, key, timestamp_ms, tuple(tags), tuple(headers), append_timestamp_ms=0)
    line = format_record(record).encode() + b"\n"
    ((_, again),) = parse_lines([line], "test", RECORDS)
    assert (again.key, again.value, again.timestamp_ms) == (key, value, timestamp_ms)
    assert (again.tags, tuple(again.headers)) == (tuple(tags), tuple(headers))


def test_plain_lines() -> None:
    lines = [b"a\n", b"\n", b"b\r\n", b"c"]
    assert [(number, each.value) for number, each in parse_lines(lines, "x", LineFormat())] == [
        (1, b"a"),
        (3, b"b"),
        (4, b"c"),
    ]
    form = LineFormat(key_separator="::")
    ((_, record),) = parse_lines([b"k::v::w\n"], "x", form)
    assert (record.key, record.value) == (b"k", b"v::w")


def test_ndjson_takes_fields_and_keeps_the_line_as_the_value() -> None:
    line = b'{"tail": "N1", "when": "2013-01-01T05:00:00Z", "carrier": "UA", "n": 7}'
    form = LineFormat(
        is_ndjson=True, key_field="tail", tag_fields=("carrier", "n"), time_field="when"
    )
    ((_, record),) = parse_lines([line], "x", form)
    assert record.value == line
    assert record.key == b"N1"
    assert record.tags == ("UA", "7")
    assert record.timestamp_ms == 1_357_016_400_000


@pytest.mark.parametrize(
    ("line", "form", "expected"),
    [
        (b"abc", LineFormat(key_separator="="), "flights.txt, line 2: no key separator"),
        (b"{", LineFormat(is_ndjson=True), "line 2: not valid JSON"),
        (b"[]", LineFormat(is_ndjson=True), "line 2: not a JSON object"),
        (b'{"a": 1}', LineFormat(is_ndjson=True, key_field="k"), "no field 'k' in it; there are a"),
        (b'{"t": "x"}', LineFormat(is_ndjson=True, time_field="t"), "'x' is neither an ISO 8601"),
        (b"[" * 100_000, LineFormat(is_ndjson=True), "line 2: "),
        (b'{"h": 3}', LineFormat(is_ndjson=True, headers_field="h"), "headers are an object"),
        (b'{"h": [3]}', LineFormat(is_ndjson=True, headers_field="h"), "headers are an object"),
        (b'{"h": [{"k": 1}]}', LineFormat(is_ndjson=True, headers_field="h"), "no field 'name'"),
        (
            b'{"h": [{"name": 1, "value": ""}]}',
            LineFormat(is_ndjson=True, headers_field="h"),
            "the name of a header is 1",
        ),
        (b'{"t": 1e99}', LineFormat(is_ndjson=True, time_field="t"), "between the years"),
        (b'{"t": "NaN"}', LineFormat(is_ndjson=True, time_field="t"), "between the years"),
        (rb'{"g": "\ud800"}', LineFormat(is_ndjson=True, tag_fields=("g",)), "has .ud800, half"),
        (rb'{"k": "\udfff"}', LineFormat(is_ndjson=True, key_field="k"), "has .udfff, half"),
        (b'{"partition": "x", "key": null, "value": ""}', PARTS, "partition is 'x'"),
    ],
)
def test_bad_lines_are_named(line: bytes, form: LineFormat, expected: str) -> None:
    good = b'{"k": 1, "t": 1, "h": {}, "g": [], "value": ""}'
    good += b"" if form.is_ndjson else b"="
    with pytest.raises(InvalidRequestError, match=expected.replace("(", r"\(")):
        list(parse_lines([good, line], "flights.txt", form))


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (b"1700000000", TimeUnit.S, 1_700_000_000_000),
        (b"1700000000.5", TimeUnit.S, 1_700_000_000_500),
        (b'"1700000000"', TimeUnit.S, 1_700_000_000_000),
        (b"1700000000000", TimeUnit.MS, 1_700_000_000_000),
        (b"1700000000000999", TimeUnit.US, 1_700_000_000_000),
        (b"-1", TimeUnit.NS, -1),
        (b'"2023-11-14T22:13:20"', TimeUnit.S, 1_700_000_000_000),
    ],
)
def test_units_of_times(value: bytes, unit: TimeUnit, expected: int) -> None:
    form = LineFormat(is_ndjson=True, time_field="t", time_unit=unit)
    ((_, record),) = parse_lines([b'{"t": %s}' % value], "x", form)
    assert record.timestamp_ms == expected


def test_headers_are_taken_only_where_they_are_named() -> None:
    line = b'{"v": "x", "headers": {"host": "a", "n": 1, "no": null}}'
    plain_form = LineFormat(is_ndjson=True, value_field="v")
    ((_, record),) = parse_lines([line], "x", plain_form)
    assert record.headers == ()
    form = LineFormat(is_ndjson=True, value_field="v", headers_field="headers")
    ((_, record),) = parse_lines([line], "x", form)
    assert record.headers == (("host", b"a"), ("n", b"1"), ("no", None))


def test_a_working_folder_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run(["dev", "restart", "node-1"]) == 1
    assert capsys.readouterr().err == "icecore: the working folder is gone: go to another one\n"


# --- times ----------------------------------------------------------------------


@given(st.integers(-62_135_596_800_000, MAX_TIMESTAMP_MS))
def test_times_round_trip(timestamp_ms: int) -> None:
    assert parse_time_ms(iso_time(timestamp_ms)) == timestamp_ms
    assert parse_time_ms(str(timestamp_ms)) == timestamp_ms


def test_positions() -> None:
    assert parse_position("earliest") == ("earliest", 0)
    assert parse_position("17") == ("offset", 17)
    assert parse_position("@17") == ("time", 17)
    assert parse_position("1970-01-01T01:00:00+01:00") == ("time", 0)
    assert parse_position("1970-01-02") == ("time", 86_400_000)
    for text in ("yesterday", "1_0", "@1_0", "\u0663", "-\u0663"):
        with pytest.raises(typer.BadParameter):
            parse_position(text)


# --- output ----------------------------------------------------------------------


def test_documents_have_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(is_json=True, is_quiet=False)
    output.json({"a": 1})
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "a": 1}
    output.rows([{"a": 1}], ("a",))
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "items": [{"a": 1}]}


def test_numbers_can_be_pasted_back(capsys: pytest.CaptureFixture[str]) -> None:
    Output(is_json=True, is_quiet=False).table([{"offset": 1_234_567}], ("offset",))
    assert "1234567" in capsys.readouterr().out
    assert [size(each) for each in (0, 1000, 64 << 20, 3 << 29, 123 << 40)] == [
        "0B",
        "1000B",
        "64MiB",
        "1.5GiB",
        "123TiB",
    ]
    assert [counted(1, "batch"), counted(2, "batch"), counted(0, "record")] == [
        "1 batch",
        "2 batches",
        "0 records",
    ]


def test_values_become_json() -> None:
    segment = Segment(1 << 60, b"\x01\xff", "t", 0, SegmentState.SEALED, 3, replicas=(1, 2))
    values = json.loads(json.dumps(plain([segment])))[0]
    assert values["segment_id"] == 1 << 60
    assert values["topic_id"] == "01ff"
    assert values["replicas"] == [1, 2]
    assert values["state"] == "sealed"
    assert values["settings"]["flush_mode"] == "sync"


# --- the command ----------------------------------------------------------------------


def test_global_options_may_stand_anywhere() -> None:
    words = ["topic", "list", "--json", "-b", "h:1", "--", "-q"]
    assert _hoist_globals(words) == ["--json", "-b", "h:1", "topic", "list", "--", "-q"]


def test_usage_errors_are_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "declear"]) == 2
    said = capsys.readouterr().err
    assert "No such command 'declear'; there are create, list, describe," in said
    assert "Did you mean" not in said  # it would be `delete`
    assert run(["topic", "create"]) == 2
    assert run(["topic", "create", "t", "--segment-bytes", "8 penguins"]) == 2
    assert run(["topic", "delete"]) == 2
    assert run(["fetch", "t", "--from", "yesterday"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("icecore 0.")


def test_errors_are_json_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-b", "127.0.0.1:1", "topic", "list", "--json"]) == 1
    error = json.loads(capsys.readouterr().err)
    assert error["schema"] == 1
    assert error["error"]["reason"] == "UNAVAILABLE"
    assert error["error"]["status"] == 1


def test_output_that_cannot_be_written_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*CLI, "config", "schema"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "icecore: the output can't be written: No space left on device\n"


def test_a_reader_that_has_seen_enough_is_no_failure() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*CLI, "config", "schema"], stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_completion_without_its_variables_is_no_traceback() -> None:
    environment = {**os.environ, "_ICECORE_COMPLETE": "complete_bash"}
    done = subprocess.run(CLI, env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_help_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    for command in ("topic", "produce", "fetch", "cluster", "segment", "config", "dev"):
        assert command in text


def test_nobody_there_is_1_and_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:  # bound, not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run(["-b", address, "topic", "list"]) == 1
    error = capsys.readouterr().err
    assert "icecore dev" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("limit", [8, 12, 20, 31])
def test_too_few_descriptors_are_one_sentence(limit: int) -> None:
    """gRPC would end the process by a signal."""
    set_limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}));"
    for words in (["topic", "list"], ["dev"]):
        program = f"{set_limit} from icecore.cli.app import main; main({words!r})"
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 1 and not done.stdout
        assert done.stderr.startswith(f"icecore: only {limit} files and connections may be open")
        assert done.stderr.count("\n") == 1


def test_config_schema_and_values(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main_status = run(["config", "schema"])
    assert main_status == 0
    assert json.loads(capsys.readouterr().out)["additionalProperties"] is False
    path = tmp_path / "c.toml"
    path.write_text(
        '[node]\nio_workers = 7\ntail_cache_bytes = "1MiB"\n[node.timing]\ndigest_calm_ms = 5\n'
    )
    assert run(["config", "show", "--config", str(path)]) == 0
    rows = {each["setting"]: each for each in json.loads(capsys.readouterr().out)["items"]}
    assert (rows["io_workers"]["value"], rows["io_workers"]["from"]) == (7, f"{path} [node]")
    assert (rows["tail_cache_bytes"]["value"], rows["data"]["value"]) == (1 << 20, None)
    assert (rows["log_level"]["from"], rows["data"]["from"]) == ("default", "")
    calm, sync = rows["timing.digest_calm_ms"], rows["timing.index_sync_ms"]
    assert (calm["value"], calm["from"], sync["value"]) == (5, f"{path} [node]", 1_000)
    assert "digest" in calm["meaning"] and "timing" not in rows
    assert run(["config", "show", "coordinator", "--node", "1"]) == 2
    assert "leave out coordinator" in capsys.readouterr().err
    path.write_text("[node]\nio_worker = 7\n")
    assert run(["config", "show", "--config", str(path)]) == 1
    assert "did you mean io_workers?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fetch t --follow --until 9", "--until: ends, and --follow does not: give one of them"),
        ("fetch t --pattern x", "--pattern: names topics, as TOPIC does: give one of them"),
        ("fetch", "name topics, or give --pattern REGEX"),
        (
            "query t --id 0@1 --key x --tag y --all",
            "--id: names one record: leave out --key, --tag",
        ),
        ("query t --id 0@1 --continue eA==", "--id: names one record: leave out --continue"),
        ("query t --id 0@1 --from-offset 3", "--id: names one record: leave out --from-offset"),
        (
            "produce t --tag-field x",
            "--tag-field: --format lines has no fields: say --format ndjson",
        ),
        ("produce t -f ndjson -k x", "not for --format ndjson: say --key-field"),
        ("produce t --same-partition", "--same-partition: needs --format records"),
        ("produce t -f records --same-partition --partition 1", "give it or --partition"),
        ("cluster health --watch --wait 3", "--wait: ends, and --watch does not: give one of them"),
        ("topic delete-records t", "give --before-offset or --before-time, and not both"),
        (
            "topic alter t --indexed-header x --no-indexed-headers",
            "give --indexed-header or --no-i",
        ),
        ("fetch t --group g", "there are no consumer groups yet; --position NAME goes on"),
        ("fetch t -G g", "there are no consumer groups yet"),
    ],
)
def test_options_that_exclude_each_other_are_both_named(
    capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    assert run(words.split()) == 2
    assert said in " ".join(capsys.readouterr().err.replace("'", "").split())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("24:00", "has no day: write one before it"),
        ("10:00:30", "has no day"),
        ("2026-02-30", "is no time that there is: day"),
        ("2026-13-01T10:00", "is no time that there is: month must be in"),
        ("2026-01-01T25:00", "is no time that there is: hour must be in"),
        ("2026-01-01 24:00:00Z", "is the next day's 00:00"),
        ("2026-01-01T10:00+", "neither an ISO 8601 time nor milliseconds"),
        ("yesterday", "neither an ISO 8601 time nor milliseconds"),
    ],
)
def test_a_time_that_there_is_not_is_told_from_no_time(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_time_ms(text)
    with pytest.raises(typer.BadParameter, match="ISO 8601" if "neither" in said else said):
        parse_position(text)


def test_ports_and_folders_in_use_are_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=r"--port"):
            LocalCluster(tmp_path, 1, base_port=port).start()
    holder = LocalCluster(tmp_path, 1)
    holder._take_folder()
    with pytest.raises(ConfigurationError, match=r"in use by another cluster"):
        LocalCluster(tmp_path, 1).start()
    holder.stop()


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [
        (0, "0 s"),
        (2_500, "2.5 s"),
        (60_000, "1 min"),
        (3_599_999, "59 min"),
        (3_600_000, "1 h"),
        (24 * 3_600_000, "1 d"),
        (27 * 3_600_000 + 120_000, "1 d 3 h"),
        (86_399_000, "23 h 59 min"),
    ],
)
def test_lengths_of_time_for_people(length_ms: int, text: str) -> None:
    assert duration(length_ms) == text
