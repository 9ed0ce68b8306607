"""The sample: the same each time, and what the README asks of it is there."""

import json

import pytest

from icecore.cli.app import main
from icecore.cli.records import sample
from icecore.cli.records.times import parse_time_ms


def test_it_is_the_same_each_time() -> None:
    rows = list(sample.rows())
    assert len(rows) == sample.COUNT
    assert rows[:50] == list(sample.rows(50))
    in_march = [
        row for row in rows if row["tailnum"] == "N14228" and str(row["time"])[:7] == "2013-03"
    ]
    assert in_march and rows[0]["time"] == "2013-01-01T00:00:00.000Z"


def test_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["dev", "sample", "--count", "3"])
    assert ended.value.code == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == list(sample.rows(3))
    assert parse_time_ms(str(lines[1]["time"])) - parse_time_ms(str(lines[0]["time"])) > 0
