"""The client's side of a measurement, whatever the system: what to send, and when to count.

A ``Job`` is what a client process is told, ``Meter`` what it counts with: nothing counts during the
warm-up, then records and CPU time of every process between two moments of a steady state.
"""

import os
import time
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness.cases import Case
from benchmarks.harness.figures import latency_ms, rates
from benchmarks.harness.machine import Cost, cost_of, reset_peaks

POOL_RECORDS = 20_000
PROBE_BYTES = 100


@dataclass(frozen=True, slots=True)
class Job:
    """The task of one client process."""

    system: str
    bootstrap: str
    topic: str
    case: Case
    act: str
    """``touch``, ``produce``, ``fill``, ``fetch``, ``follow``, ``single`` or ``open``."""
    seconds: float
    warm_s: float
    pids: dict[str, int]
    """Processes of the measured system, whose costs are counted."""
    records: int = 0
    """To fill a topic with, or that are there to be fetched."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Job":
        """Inverse of ``to_dict``."""
        return cls(**{**values, "case": Case(**values["case"])})


class Pool:
    """Records made beforehand: random values of one size, and random keys where there are any."""

    def __init__(self, case: Case, count: int = POOL_RECORDS) -> None:
        self.values = [os.urandom(case.record_bytes) for _ in range(count)]
        self.keys = [os.urandom(case.key_bytes) or None for _ in range(count)]


class Meter:
    """Counts between the end of the warm-up and ``job.seconds`` later.

    Args:
        job: For the times, and whose processes count.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._pids = {**job.pids, "client": os.getpid()}
        self._latencies_s: list[float] = []
        self._start: tuple[float, int, dict[str, Cost]] | None = None
        self._end: tuple[float, int, dict[str, Cost]] | None = None
        self._until_s = time.perf_counter() + job.warm_s

    def is_on(self, records: int) -> bool:
        """Return whether the client is to go on; to be called often.

        Args:
            records: How many are acknowledged, or delivered, so far.
        """
        now_s = time.perf_counter()
        if now_s < self._until_s:
            return True
        if self._start is None:
            reset_peaks(self._pids)
            self._start = (now_s, records, self._costs())
            self._until_s = now_s + self._job.seconds
            return True
        if self._end is None:
            self._end = (now_s, records, self._costs())
        return False

    def note(self, due_s: float | None) -> None:
        """A record that was due then has its outcome now; None is not to be noted."""
        if due_s is not None and self._start is not None and due_s >= self._start[0]:
            self._latencies_s.append(time.perf_counter() - due_s)

    def result(self) -> dict[str, Any]:
        """Figures, and the costs by process; ``cpu_ms`` is that of all of them per record."""
        assert self._start is not None and self._end is not None
        (start_s, before, costs), (end_s, after, costs_now) = self._start, self._end
        case = self._job.case
        gigabytes = max(1, after - before) * case.record_bytes / 1e9
        processes = {
            name: {
                "cpu_s": round(now.cpu_s - costs[name].cpu_s, 2),
                "cpu_s_per_gb": round((now.cpu_s - costs[name].cpu_s) / gigabytes, 2),
                "peak_rss_mib": now.peak_rss_bytes >> 20,
            }
            for name, now in costs_now.items()
        }
        cpu_s = sum(now.cpu_s - costs[name].cpu_s for name, now in costs_now.items())
        return {
            "figures": {
                **rates(after - before, end_s - start_s, case.record_bytes),
                **latency_ms(self._latencies_s),
                "cpu_ms": round(1000 * cpu_s / max(1, after - before), 3),
            },
            "processes": processes,
        }

    def _costs(self) -> dict[str, Cost]:
        return {name: cost_of(pid) for name, pid in self._pids.items()}
