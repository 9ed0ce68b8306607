"""Runs of which only a part counts: judged, and kept apart, without the rest of their bytes."""

import pytest

from icecore_node.storage.engine import KnownLog
from icecore_node.storage.shared_engine.judgement import judge, span_of
from icecore_node.storage.shared_engine.trails import FoundRun, Trail
from tests.conformance.log_builder import LogBuilder


class Files:
    """Shared files by number, as bytes."""

    def __init__(self, *files: bytes) -> None:
        self._files = files

    def pread(self, number: int, length: int, position: int) -> bytes:
        return self._files[number][position : position + length]


@pytest.fixture
def log() -> LogBuilder:
    """Four batches of one record."""
    log = LogBuilder(1)
    log.request(4, 1, 100)
    return log


def run(log: LogBuilder, first: int, end: int, number: int) -> FoundRun:
    length = sum(map(len, log.batches[first:end]))
    return FoundRun(first, end, number, 0, length, is_synced=True)


def test_a_part_that_was_copied_again_leaves_the_rest(log: LogBuilder) -> None:
    trail = Trail([run(log, 0, 4, 0)], end_offset=4)
    trail.copied(run(log, 1, 3, 1))
    parts = [(each.start_offset, each.stop_offset, each.number) for each in trail.runs]
    assert parts == [(0, 1, 0), (1, 3, 1), (3, 4, 0)]
    files = Files(b"".join(log.batches), b"".join(log.batches[1:3]))
    verdict = judge(files, KnownLog(log.identity), trail)
    assert (verdict.damage, verdict.tail) == ("", log.tail)
    data = [files.pread(each.number, each.length, each.position) for each in verdict.runs]
    assert b"".join(data) == b"".join(log.batches)


def test_a_rest_that_is_not_there_is_damage(log: LogBuilder) -> None:
    trail = Trail([run(log, 0, 4, 0)], end_offset=4)
    trail.copied(run(log, 0, 3, 1))
    files = Files(bytes(1_000), b"".join(log.batches[:3]))
    assert "mid-log damage in file 0" in judge(files, KnownLog(log.identity), trail).damage


def test_the_span_of_a_part_is_its_batches(log: LogBuilder) -> None:
    files, lengths = Files(b"".join(log.batches)), [len(each) for each in log.batches]
    whole = run(log, 0, 4, 0)
    assert span_of(files, whole) == (0, sum(lengths))
    whole.from_offset, whole.cut_offset = 1, 3
    assert span_of(files, whole) == (lengths[0], sum(lengths[:3]))
    assert span_of(Files(bytes(1_000)), whole) == (0, sum(lengths))  # as far as headers tell
