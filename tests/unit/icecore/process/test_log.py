"""The dialect of the logs: what a value looks like, and that no value can forge a line or a key."""

import json
import logging
import re
import subprocess
import sys
from enum import Enum

import pytest

from icecore.errors import UnavailableError
from icecore.process.log import OTHERS_EVERY_S, OthersSeldom, event, line, rfc3339

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
        line("alert", segment_id=7, node_id=2, why="x")
        == "event=alert segment_id=7 node_id=2 why=x"
    )


def test_it_goes_through_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, log.name):
        event(log, logging.INFO, "too_quiet")
        event(log, logging.WARNING, "seen", percent="100%d", exc_info=ValueError("why"))
    [record] = caplog.records
    assert record.getMessage() == "event=seen percent=100%d"
    assert record.exc_info and isinstance(record.exc_info[1], ValueError)
    assert record.filename == "test_log.py", "the line is named by who logs, not by the helper"


# --- how a process writes them --------------------------------------------------------------------


def written(form: str, code: str) -> list[str]:
    """Return the lines that a process logs."""
    program = (
        "import logging\nfrom icecore.process.log import event, set_up\n"
        f"set_up('info', {form!r})\n_log = logging.getLogger('icecore.b')\n{code}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stderr.splitlines()


TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def test_text_has_rfc_3339_times_in_utc() -> None:
    lines = written("text", "event(_log, 20, 'up', node_id=1)\nevent(_log, 10, 'unseen')")
    assert len(lines) == 1
    assert re.fullmatch(rf"{TIME} INFO icecore\.b event=up node_id=1", lines[0])
    assert rfc3339(0.9999) == "1970-01-01T00:00:00.999Z"


def test_json_has_the_values_and_no_key_forges_the_logs_own() -> None:
    code = (
        "try:\n    1 / 0\n"
        "except ZeroDivisionError as error:\n"
        "    event(_log, 40, 'broken', a=1, b='x y', c=None, d=True, e=error, f=[1, 'z'],"
        " g=b'\\xff', h=float('inf'), time=7, exc_info=error)\n"
        "_log.warning('from %s', 'elsewhere')"
    )
    first, second = map(json.loads, written("json", code))
    assert re.fullmatch(TIME, first.pop("time"))
    assert "ZeroDivisionError" in first.pop("traceback")
    assert first == {
        "level": "error",
        "logger": "icecore.b",
        "event": "broken",
        "a": 1,
        "b": "x y",
        "c": None,
        "d": True,
        "e": "division by zero",
        "f": "1,z",
        "g": "ff",
        "h": "inf",
    }
    assert (second["level"], second["message"]) == ("warning", "from elsewhere")


def test_others_are_heard_once_a_second_and_say_what_was_left_out() -> None:
    now_s = 0.0
    seldom = OthersSeldom(lambda: now_s)

    def heard(
        name: str, text: str = "%s broke", *args: object, level: int = logging.ERROR
    ) -> str | None:
        record = logging.LogRecord(name, level, __file__, 1, text, args or ("it",), None)
        return record.getMessage() if seldom.filter(record) else None

    assert [heard("grpc._cython.cygrpc") for _ in range(4)] == ["it broke", None, None, None]
    assert heard("asyncio", level=logging.INFO) == "it broke", "each other logger has its second"
    assert heard("asyncio") == "it broke", "what matters less hides no error"
    assert all(heard("icecore_node.serving") for _ in range(100)), "ours say all"
    now_s = OTHERS_EVERY_S
    assert heard("grpc._cython.cygrpc", "100%% of %s", "it") == "100% of it (left out before: 3)"
    assert heard("grpc._cython.cygrpc") is None
    now_s = 5.0
    assert heard("asyncio") == "it broke", "nothing was left out of it"


def test_a_process_hears_others_seldom() -> None:
    code = (
        "other = logging.getLogger('grpc')\n"
        "for _ in range(1_000):\n"
        "    other.error('compressed', stack_info=True)\n    event(_log, 20, 'x')"
    )
    lines = written("text", code)
    assert sum("compressed" in line for line in lines) < 10
    assert sum("event=x" in line for line in lines) == 1_000
