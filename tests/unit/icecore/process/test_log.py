"""The dialect of the logs: what a value looks like, and that no value can forge a line or a key."""

import json
import logging
from enum import Enum

import pytest

from icecore.errors import UnavailableError
from icecore.process.log import event, line

log = logging.getLogger("tests.of.the.dialect")


class Level(Enum):
    READ_ONLY = 1


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (7, "7"),
        (2.5, "2.5"),
        (True, "true"),
        (None, "none"),
        (b"\x01\xff", "01ff"),
        (b"", '""'),
        (Level.READ_ONLY, "read_only"),
        ([3, 1, 2], "3,1,2"),
        ((), '""'),
        ("127.0.0.1:7400", "127.0.0.1:7400"),
        ("disk is full", '"disk is full"'),
        ("", '""'),
        ("a=b", '"a=b"'),
        ('say "no"', r'"say \"no\""'),
        ("köln", "köln"),
        (["a b", "c"], '"a b",c'),
        (UnavailableError("gone"), '"gone"'),
        (ValueError(), '"ValueError"'),
    ],
)
def test_how_a_value_is_written(value: object, written: str) -> None:
    assert line("it", what=value) == f"event=it what={written}"


@pytest.mark.parametrize("forged", ["x\nevent=forged", "x\x85y", "x\u2028y", "\x1b[2J", "a\tb"])
def test_no_value_begins_a_line_or_a_key(forged: str) -> None:
    written = line("it", address=forged)
    assert written.isprintable() and len(written.splitlines()) == 1
    assert json.loads(written.removeprefix("event=it address=")) == forged


def test_fields_keep_their_order() -> None:
    assert (
        line("page", segment_id=7, node_id=2, why="x") == "event=page segment_id=7 node_id=2 why=x"
    )


def test_it_goes_through_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, log.name):
        event(log, logging.INFO, "too_quiet")
        event(log, logging.WARNING, "seen", percent="100%d", exc_info=ValueError("why"))
    [record] = caplog.records
    assert record.getMessage() == "event=seen percent=100%d"
    assert record.exc_info and isinstance(record.exc_info[1], ValueError)
    assert record.filename == "test_log.py", "the line is named by who logs, not by the helper"
