"""Commands as somebody at a terminal of 80 columns sees them: what is typed, shown, interrupted."""

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.support.cli_cluster import serving
from tests.support.fake_cluster import FakeCluster

LONG_S = 60.0
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COMMAND = """
import os, signal
os.close(os.open(os.ttyname(0), os.O_RDWR))  # now Ctrl-C goes to this process
signal.signal(signal.SIGINT, signal.default_int_handler)  # also if the tests run in the background
from icecore.cli.app import main
main()
"""
CTRL_C, CTRL_D = "\x03", "\x04"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    rows = [(number % 2, {"value": b"%d" % number + b" " * 200}) for number in range(4)]
    with serving("t", 2, rows) as cluster:
        yield cluster


@dataclass
class Terminal:
    """A command whose stdin, stdout and stderr are one terminal."""

    process: "subprocess.Popen[bytes]"
    side: int
    shown: str = ""

    def until(self, text: str) -> None:
        """Wait until this is shown."""
        self._read(lambda: text in self.shown, text)

    def type(self, text: str) -> None:
        os.write(self.side, text.encode())

    def end(self) -> int:
        """The exit status, once all is shown."""
        self._read(lambda: False, "its end")
        return self.process.wait(LONG_S)

    def _read(self, is_enough: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + LONG_S
        while not is_enough():
            assert time.monotonic() < end_s, f"no {what!r} in {self.shown!r}"
            if not select.select([self.side], [], [], 0.1)[0]:
                continue
            try:
                found = os.read(self.side, 1 << 16)
            except OSError:  # nobody has the other side any more
                return
            self.shown += COLOURS.sub("", found.decode()).replace("\r\n", "\n")


@pytest.fixture
def terminals(cluster: FakeCluster) -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def start(*words: str) -> Terminal:
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 80))
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "-b", cluster.bootstrap, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")},
            start_new_session=True,
        )
        os.close(theirs)
        started.append(Terminal(process, ours))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
        os.close(each.side)


def test_who_types_is_told_where_each_record_is(terminals: Callable[..., Terminal]) -> None:
    typing = terminals("produce", "t", "--partition", "1")
    typing.until("one record per line; Ctrl-D ends\n")
    typing.type("hello\n")
    typing.until("hello\n  partition 1, offset 2\n")
    typing.type("world\n")
    typing.until("world\n  partition 1, offset 3\n")
    typing.type(CTRL_D)
    assert typing.end() == 0, typing.shown
    assert "2 records in t\n" in typing.shown


def test_ctrl_c_ends_with_a_count_always(terminals: Callable[..., Terminal]) -> None:
    """Status 130; 0 where there is no other end."""
    typing = terminals("produce", "t", "--partition", "1")
    typing.until("Ctrl-D ends")
    typing.type("hello\n")
    typing.until("offset 2")
    typing.type(CTRL_C)
    assert typing.end() == 130, typing.shown
    assert "1 record is acknowledged, up to line 1 of stdin" in typing.shown
    following = terminals("fetch", "t", "--follow", "--partition", "0")
    following.until('"offset": 1')
    following.type(CTRL_C)
    assert following.end() == 0, following.shown
    assert "2 records\n" in following.shown


def test_records_are_shown_line_by_line_as_they_are(terminals: Callable[..., Terminal]) -> None:
    """Nothing folds them, so that they can be copied."""
    fetching = terminals("fetch", "t", "--partition", "0")
    assert fetching.end() == 0
    lines = fetching.shown.splitlines()
    assert len(lines) == 3 and lines[-1] == "2 records"
    assert all(line.endswith("}") and len(line) > 200 for line in lines[:2])


def test_a_topic_that_is_not_there_is_not_asked_about(
    terminals: Callable[..., Terminal], cluster: FakeCluster
) -> None:
    missing = terminals("topic", "delete", "nope")
    assert missing.end() == 3
    assert missing.shown == "icecore: nope\n"
    asked = terminals("topic", "delete", "t")
    asked.until("Delete t? [y/N]: ")
    asked.type("n\n")
    assert asked.end() == 1
    assert asked.shown.endswith("icecore: nothing was done\n")
    assert "t" in cluster.topics
