"""The cases that several groups of gates measure."""

from dataclasses import replace

from benchmarks.cases import ICECORE, MIB, OPEN_RATE_S, Case
from benchmarks.gates.gate import Measurement

RF1, RF3 = Case("produce", rf=1), Case("produce", rf=3)
SMALL_RF1, SMALL_RF3 = Case("produce", 100, rf=1), Case("produce", 100, rf=3)
ONE = replace(RF3, partitions=1)
KEYED = Case("produce", spread="keyed")
DEEP = replace(KEYED, in_flight_bytes=256 * MIB)
"""Room for a full batch of each of 1,024 partitions, as their users are told to give it."""
MANY = Case("produce", 100, 1024, "keyed")
FETCH, FETCH_MANY = Case("fetch", 100), Case("fetch", 100, 1024, "keyed")
SINGLE = Case("single", api="records")
OPEN = Case("open", spread="keyed", api="records", rate_s=OPEN_RATE_S)


def ours(case: Case) -> Measurement:
    """Measure our system with its default settings."""
    return Measurement(ICECORE, case)
