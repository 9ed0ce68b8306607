"""The verdict of a soak: growth after a quarter of the time, and nothing else."""

from benchmarks.soak.load import Counts
from benchmarks.soak.soak import CLIENTS, Course, Sample, course_of, table_of, verdict

DONE = Counts(sent=10, read=10, read_from_oldest=5, looks=3)


def samples(*mib: float, threads: int = 30, descriptors: int = 80) -> list[Sample]:
    return [Sample(each, threads, descriptors, 1.0) for each in mib]


def test_a_start_that_grows_and_a_peak_between_are_no_growth() -> None:
    found = course_of(samples(*range(100, 400, 30), *[400.0] * 14, 900.0, *[405.0] * 15))
    assert found.complaints() == []


def test_memory_that_grows_on_is_told() -> None:
    found = course_of(samples(*(100.0 + 10 * at for at in range(40))))
    assert (found.quarter.resident_mib, found.end.resident_mib) == (195.0, 475.0)
    assert found.complaints() == ["resident memory 195 -> 475 MiB"]
    assert "195 -> 475" in table_of({"node-1": found})


def test_threads_and_descriptors_that_grow_are_told() -> None:
    [before], [after] = samples(100.0), samples(100.0, threads=63, descriptors=113)
    assert Course(before, after).complaints() == ["threads 30 -> 63", "descriptors 80 -> 113"]


def test_the_verdict_is_about_servers_and_errors() -> None:
    grown = course_of(samples(*(100.0 + 10 * at for at in range(40))))
    assert verdict({CLIENTS: grown}, DONE) == []
    assert verdict({"node-1": grown}, DONE) == ["node-1: resident memory 195 -> 475 MiB"]
    failed = Counts(sent=1, read=1, read_from_oldest=1, looks=1, errors=2, first_errors=["e"])
    assert verdict({}, failed) == ["2 errors of clients, the first: ['e']"]
    assert verdict({}, Counts(sent=1))[0].startswith("a client did nothing")
